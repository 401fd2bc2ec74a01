"""What a program consists of, before and after it is lowered: by layer, and by method of a model."""
