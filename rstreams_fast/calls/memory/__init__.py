"""The cache: keeps results of calls for later calls, in memory or in a file of the host."""
