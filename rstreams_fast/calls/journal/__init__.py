"""Answers that outlive the process."""
