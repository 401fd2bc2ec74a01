"""The page of a lowering: one HTML file with its stages, rules, alternatives, errors and checks."""
