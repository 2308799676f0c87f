"""The operators of a stream, one file for each."""
