"""Conversions between Spark, Arrow, pandas and Python values."""
