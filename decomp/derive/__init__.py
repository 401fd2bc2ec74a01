"""Planning and rewriting: rules are run, a derivation is chosen for each call, and the lowered program is built."""
