"""Folding back: the ops that a lowered, or hand-written, program spells out become calls again."""
