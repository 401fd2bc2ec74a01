"""Running rules, choosing a derivation for each call, and building the lowered program."""
