"""Views, copies, and what moves elements by position alone."""
