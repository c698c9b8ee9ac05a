"""Faster ways to compute what a model's own layers compute."""
