"""A whole benchmark from one file."""
