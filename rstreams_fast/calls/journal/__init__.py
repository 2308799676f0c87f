"""The journal: files that keep answers (results of calls) after their process has ended."""
