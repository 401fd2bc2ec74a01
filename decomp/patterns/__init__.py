"""Patterns: several calls that together mean one thing, and where a program makes them."""
