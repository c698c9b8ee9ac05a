"""Measuring: the masking walk, the areas between curves, and masking with retraining."""
