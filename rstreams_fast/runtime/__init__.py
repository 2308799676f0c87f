"""Executors, event loops, worker threads and timers. No import of a module starts a thread."""
