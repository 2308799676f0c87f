"""Calls with lists of keys: one call for many rows."""
