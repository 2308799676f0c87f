"""Tests of calls of a function and their policies: without streams, and without Spark."""
