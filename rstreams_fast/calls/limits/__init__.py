"""Limits of calls that stages, workers and hosts share."""
