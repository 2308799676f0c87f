"""The cache: results of calls, kept in memory or in a file of the host for later calls."""
