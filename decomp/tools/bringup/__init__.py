"""Bring-up of a backend: compares each primitive, each op of the library and whole models with PyTorch, and finds the
primitive at fault for each difference."""

TIMEOUT = 120.0
"""The default time limit of a row in seconds."""
