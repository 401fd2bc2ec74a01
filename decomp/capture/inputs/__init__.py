"""What a program is called with: trees of inputs, and what was assumed of them."""
