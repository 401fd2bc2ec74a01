"""What rules of all families share."""
