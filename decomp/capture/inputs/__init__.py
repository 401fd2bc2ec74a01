"""The inputs of programs: pytrees, checks, and the assumptions made about them."""
