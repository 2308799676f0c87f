"""What runs in one partition: read-ahead, the pump of calls, threads, conversions, counters."""
