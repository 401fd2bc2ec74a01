"""Searches for the ops and dtypes that a target must add for programs to lower to it."""
