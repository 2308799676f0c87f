"""Calls of a user's function, and what surrounds them. Knows no stream and no Spark."""
