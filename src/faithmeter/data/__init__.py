"""Data: tasks, their splits and labels, texts as tokens, and the units that are masked as a whole."""
