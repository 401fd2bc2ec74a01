"""Converters, the tools that turn an ExportedProgram into another runtime's model: what each of them takes, as a
target, and a program lowered to that target, handed to it and verified."""
