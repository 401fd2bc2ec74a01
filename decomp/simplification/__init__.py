"""Simplifying a graph: its calls as terms, which laws bring into a normal form and which are one value where they are
equal; and the check that the simplified graph follows from the graph that it was made from."""
