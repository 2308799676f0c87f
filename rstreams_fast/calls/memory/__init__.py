"""Results that are kept for later calls."""
