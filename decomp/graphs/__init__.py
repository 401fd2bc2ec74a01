"""Construction of graphs: creating nodes, recording calls, and inlining compiled expansions."""
