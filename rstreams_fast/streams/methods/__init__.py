"""The methods of ``Stream``: a file for each heading of ``docs/reference/stream.md``."""
