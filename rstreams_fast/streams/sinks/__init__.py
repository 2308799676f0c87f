"""The ends of streams: subscribers, iterators and functions that consume the elements."""
