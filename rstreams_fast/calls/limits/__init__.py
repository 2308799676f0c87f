"""Bounds that stages, workers and hosts share."""
