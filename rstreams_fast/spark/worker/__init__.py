"""The code that runs in one partition: read-ahead, pump of calls, threads, conversions, counts."""
