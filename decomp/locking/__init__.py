"""Locks: what a lowering depended on and what it became, in a file that a later lowering is held to."""
