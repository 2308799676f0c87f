"""The consumers of streams: subscribers, iterators, and functions that return a result."""
