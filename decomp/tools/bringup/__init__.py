"""Bring-up of a backend: each primitive, each op of the library and whole models against PyTorch, and what is to blame
for each difference."""
