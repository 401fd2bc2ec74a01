"""The proof that a lowered program is structurally the program that came in."""
