"""Calls of lists of keys."""
