"""What a target would have to know in addition, for programs to be lowered to it."""
