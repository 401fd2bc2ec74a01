"""Simplification of graphs. Calls are represented as terms, which laws rewrite to a normal form and in which equal
calls are one term; a separate check verifies that the simplified graph follows from the original."""
