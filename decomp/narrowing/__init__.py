"""Narrow dtypes in the place of wide ones, for targets whose tensors have no more bits."""
