"""The journal: answers (results of calls) in files that outlive the process."""
