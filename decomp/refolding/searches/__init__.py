"""The searches for ops in a graph, one kind of op a module."""
