"""`decomp demo`: a small GPT, lowered, compared and run."""

from __future__ import annotations

from rich.text import Text

from decomp.tools.cli.arguments import load_target
from decomp.tools.cli.flags import command
from decomp.tools.cli.terminal import show, working


@command(shared="")
def demo() -> None:
    """Lower a small GPT to tinygrad's primitives, compare it with the original, and run it on NumPy."""
    from decomp.tools.cli import tables
    from decomp.tools.cli.demo import demonstrate
    from decomp_rules import backends, samples

    model, args = samples.model("gpt")
    size = sum(p.numel() for p in model.parameters())
    show(Text(f"a GPT of {len(model.blocks)} layers, {size:,} parameters, random weights", style="bold"))
    with working("lowering it to tinygrad and comparing"):
        found = demonstrate(model, args, load_target("tinygrad"), backend=backends.get("numpy"))
    show("", tables.report_table(found.lowering.report()), "", tables.demo_table(found))
    show("", Text("Next: decomp targets; decomp lower resnet --to core_aten; decomp explain gelu --to tinygrad"))
