"""Primitive against fused: `python -m benchmarks.fused_vs_primitive` is `decomp bench`, with the same options."""

from __future__ import annotations

import typer

from decomp.tools.cli.bench import bench

if __name__ == "__main__":
    typer.run(bench)
