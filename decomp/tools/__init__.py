"""What stands on the library: certification, benchmarks, the terminal. Nothing below imports it."""
