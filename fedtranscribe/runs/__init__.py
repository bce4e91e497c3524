"""Whole runs, from settings to a folder with a result."""
