"""Executors, event loops, worker threads and timers. No import of this package starts a thread."""
