"""The verbs of this package in a terminal."""
