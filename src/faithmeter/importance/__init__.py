"""Importance measures: functions that explain a batch, a file for each family, and the table that names them."""
