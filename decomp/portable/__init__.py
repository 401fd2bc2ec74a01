"""A lowered program as two files that need no Python: calls as JSON, and weights as bytes."""
