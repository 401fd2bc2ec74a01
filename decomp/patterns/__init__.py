"""Patterns of several calls, and the search for them in a program."""
