"""``rstreams-fast run``: a command that calls a function for each row of files, using Spark."""
