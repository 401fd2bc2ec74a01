"""Lowered programs on a backend: a table of functions, one a primitive, and the programs that run on it."""
