"""`decomp prove`: which ops reach a target, over the whole table of sample calls, in a file that can be checked again
without the rules."""
