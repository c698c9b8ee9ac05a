"""Judges: the other ways in which the literature tells good explanations from bad ones (Oxford thesis, 2022, Ch. 2)."""
