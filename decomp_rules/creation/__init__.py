"""Factories, random numbers, window functions."""
