"""Programs of MIL, Core ML's intermediate language, computed without Core ML, which runs on Apple's systems alone."""
