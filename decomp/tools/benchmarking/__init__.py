"""What lowering costs at run time: programs as they are and lowered, eager and compiled, side by side in one run. Nouns
in `records`, the way in is `suite.run`. Nothing here knows an op: workloads and variants are given."""
