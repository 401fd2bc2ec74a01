"""Measures values and gradients of lowered programs against the source op and float64."""
