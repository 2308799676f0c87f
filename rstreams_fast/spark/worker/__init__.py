"""The code that runs in one partition: it reads ahead, makes calls, converts values and counts."""
