"""Complex numbers on pairs of real ones, and Fourier transforms."""
