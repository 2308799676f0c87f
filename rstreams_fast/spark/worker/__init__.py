"""The code that runs in Spark's Python workers, for ``lookup``, ``enrich`` and other stages."""
