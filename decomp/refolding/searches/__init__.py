"""Searches for ops in a graph, one kind of op a module; what later ones look for is made of what earlier ones find."""
