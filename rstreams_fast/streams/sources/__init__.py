"""The sources of streams, such as ``from_iterable``, ``create`` and ``interval``."""
