"""Runs: directories that keep a model and everything found out about it, and the engines that work in them."""
