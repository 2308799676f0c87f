"""The sources of streams."""
