"""The journal: answers of calls, in files that outlive the process."""
