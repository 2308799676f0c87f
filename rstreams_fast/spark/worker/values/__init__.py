"""Conversions between Spark, Arrow, pandas and Python values, and the memory that values take."""
