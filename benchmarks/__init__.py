"""Benchmarks: the cost of lowering, compared with PyTorch's own tools, and models on backends."""
