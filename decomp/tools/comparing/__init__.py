"""Comparison of a lowered program, as a backend runs it, with PyTorch, call by call on the backend's own operands:
which call is wrong, or whether correct calls add up to a wrong result."""
