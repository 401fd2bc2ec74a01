"""Mutation made functional, and written back once."""
