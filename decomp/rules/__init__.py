"""What a rule and a target are, and what may be said and done in them."""
