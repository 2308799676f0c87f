"""The base classes of ``Stream``: one file for each heading of ``docs/reference/stream.md``."""
