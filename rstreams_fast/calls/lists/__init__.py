"""Calls with a list of keys: one call serves many rows."""
