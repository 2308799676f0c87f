"""The operators of a stream. Each operator has its own file."""
