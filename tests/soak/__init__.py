"""Random producers, consumers, cancellers and closers on real threads and loops, for long.

``python -m tests.soak --seconds 1800`` (``make soak``) runs one short scenario after the other,
each on a chance of its own that the seed and its number give, so that it can be repeated. Nothing
may be lost, doubled or reordered, and afterwards threads, tasks, files and objects are those that
were there before; in the long run, so is memory.
"""
