"""Tools that use the library: certification, benchmarks, bring-up, the command line. No module below imports them."""
