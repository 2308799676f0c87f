"""The extension under valgrind's memcheck: what is run there, and how its report is judged."""
