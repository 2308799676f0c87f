"""Measurements: each primitive by itself, and ratios to the peers and to the floors."""
