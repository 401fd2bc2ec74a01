"""Memory plans of programs that are interpreted call by call: which results take the place of what they are computed
from, where in one arena the others lie, what runs in blocks of rows; the check of a plan, and the program that it
makes."""
