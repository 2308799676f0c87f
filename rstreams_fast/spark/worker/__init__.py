"""Runs a stage in one partition of Spark: reads ahead, makes calls, converts values and counts."""
