"""Reductions, norms, differences, order statistics."""
