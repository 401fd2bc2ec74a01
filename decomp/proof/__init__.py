"""Structural verification of lowered programs against their sources."""
