"""Run lowered programs on a backend: tables of functions, one for each primitive, and programs that use them."""
