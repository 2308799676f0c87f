"""Streams: their sources, their operators, and the subscribers at their ends."""
