"""Values on their way between Spark, Arrow, pandas and Python, and the bytes that they take."""
