"""Convolution, pooling, padding, resampling."""
