"""Building graphs: nodes, recorded calls, and expansions compiled to be stamped."""
