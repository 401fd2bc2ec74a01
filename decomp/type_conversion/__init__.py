"""Converts the dtypes of a program to those of a target: narrow ones for wide ones, pairs of real numbers for complex
ones."""
