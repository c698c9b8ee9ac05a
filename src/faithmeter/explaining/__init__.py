"""Explaining: one text, its heat map and its own small curve."""
