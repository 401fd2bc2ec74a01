"""Benchmarks: what lowering costs, side by side with PyTorch's own ways."""
