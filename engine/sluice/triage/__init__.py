"""Compare two runs, name the first tensor that differs, what made it differ, and of what class."""
