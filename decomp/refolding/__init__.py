"""The inverse of lowering: replaces the nodes that spell out an op by one call of it."""
