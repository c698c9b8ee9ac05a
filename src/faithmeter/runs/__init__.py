"""Runs: directories of a model and all its results, and the engines that work in them."""
