"""Functionalization: in-place ops become functional ones, and inputs and buffers are written back once."""
