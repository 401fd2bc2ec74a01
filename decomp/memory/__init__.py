"""Memory plans for programs that are interpreted call by call: which results overwrite an operand, where the others are
placed in one arena, and which calls run in blocks of rows; the verification of a plan, and the program that applies
it."""
