"""``rstreams-fast run``: calls a function for the rows of files, without a program."""
