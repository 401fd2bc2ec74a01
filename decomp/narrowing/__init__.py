"""Replaces wide dtypes by narrow ones, for targets that do not have the wide ones."""
