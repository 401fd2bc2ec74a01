"""`decomp score`: how much of PyTorch reaches a target, in figures that each say what is missing."""
