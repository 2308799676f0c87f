"""``rstreams-fast run``: calls of a function for the rows of files, without a program around it."""
