"""Streams: sources, operators, boundaries and ends."""
