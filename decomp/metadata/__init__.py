"""Metadata of tensors: fake tensors, strides, symbolic sizes."""
