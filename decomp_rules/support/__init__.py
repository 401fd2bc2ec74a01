"""Helpers shared by rules of all families."""
