"""Executors, event loops, worker threads and timers. Importing them starts no thread."""
