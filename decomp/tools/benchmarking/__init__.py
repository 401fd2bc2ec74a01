"""Benchmarks of lowering at run time: programs and their lowered versions, eager and compiled, side by side in one run.
The entry point is `suite.run`; `records` has the classes. Workloads and variants are arguments."""
