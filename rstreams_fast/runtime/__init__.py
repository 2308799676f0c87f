"""Where work runs: executors, event loops, workers. Nothing here starts a thread on import."""
