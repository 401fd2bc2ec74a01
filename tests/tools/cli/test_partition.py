"""`decomp partition`: the parts of a model, as a table and as JSON."""

import json

from tests.commands import run, said


def test_a_model_is_split_and_shown(tmp_path):
    chip = tmp_path / "chip.toml"
    chip.write_text('name = "chip"\ndescription = "no erf, no exp"\ntags = []\nops = ["addmm", "permute", "view"]\n')
    result = run("partition", "mlp", "--to", chip)
    assert result.exit_code == 0, result.output
    first, titles, *rest = result.output.splitlines()
    assert first.startswith("partition to chip: ") and "on the chip, in " in first
    assert titles.split() == "part calls lowered to bytes in bytes out ops".split()
    assert "on the host (cpu):" in rest
    found = json.loads(run("partition", "mlp", "--to", chip, "--json").stdout)
    assert {part["side"] for part in found["parts"]} == {"chip", "host"}
    assert found["exact"] and found["unit"] == "bytes" and found["price"] <= found["supported"]
    dear = json.loads(run("partition", "mlp", "--to", chip, "--json", "--transfer", "1e9").stdout)
    assert [part["name"] for part in dear["parts"]] == ["host_0"]


def test_a_price_below_zero_is_refused():
    assert said(run("partition", "mlp", "--to", "core_aten", "--transfer", "-1")) == (
        2,
        "error: transfer= must be the price of a byte, a number of 0 or more, or a function, not -1.0",
    )
