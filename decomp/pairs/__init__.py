"""Computes complex numbers as pairs of real ones, for targets that have no complex dtype."""
