"""Measures a rule against a reference: trials, points, gradients and error statistics."""
