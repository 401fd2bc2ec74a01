"""Views, copies, and other ops that move elements by position."""
