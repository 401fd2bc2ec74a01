"""Programs split between a chip and a host: which call runs where, and the program of parts."""
