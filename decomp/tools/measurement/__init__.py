"""Measuring a rule against a reference: trials, points, gradients, and what is counted."""
