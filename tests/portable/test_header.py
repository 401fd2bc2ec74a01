"""The C header of a target: it compiles as C and as C++, and a small reader in C runs a program with it."""

import json
from pathlib import Path
import shutil
import subprocess

import pytest
import torch

import decomp
from decomp.portable.header import header
from decomp_rules import patterns, samples, targets
from decomp_rules.backends.c_compilers import zig_of_package

READER = Path(__file__).with_name("reader.c")
STRICT = ("-Wall", "-Wextra", "-pedantic", "-Werror")
CHIP = decomp.Target("chip", "add.Tensor mul.Tensor lt.Scalar where.self full view sum.dim_IntList".split())


def compiler(*names):
    """The command of the first of these compilers that is installed, or of zig's with the name of the last."""
    found = next(filter(None, map(shutil.which, names)), None)
    if found is None and zig_of_package() is None:
        pytest.skip("needs a C compiler, or the package ziglang")
    return (found,) if found is not None else (str(zig_of_package()), names[-1])


def run(*command, **options):
    done = subprocess.run(command, capture_output=True, check=False, **options)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("name", ["core_aten", "tinygrad", "prims"])
def test_the_header_of_a_target_is_strict_c_and_cpp(name, tmp_path):
    (tmp_path / "ops.h").write_text(header(targets.get(name)))
    (tmp_path / "chip.h").write_text(header(CHIP))
    (tmp_path / "main.c").write_text(
        '#include "ops.h"\n#include "chip.h"\n#include "ops.h"\nint main(void) { return 0; }'
    )
    run(*compiler("gcc", "cc"), "-std=c99", *STRICT, "-c", tmp_path / "main.c", "-o", tmp_path / "main.o")
    run(*compiler("g++", "c++"), "-std=c++17", *STRICT, "-x", "c++", "-c", tmp_path / "main.c", "-o", tmp_path / "m.o")


@pytest.mark.parametrize("composites", [(), ("relu", "linear")], ids=["plain", "composites"])
def test_a_reader_in_c_runs_a_program_with_the_header_of_its_target(composites, tmp_path):
    model, args = samples.models.model("mlp")
    lowering = decomp.lower(model, to=CHIP, args=args, training=False, composites=composites)
    ops = {
        call["op"] for call in json.loads(lowering.save(tmp_path / "program.json").read_text())["graphs"][0]["calls"]
    }
    assert ("higher_order.wrap" in ops) == bool(composites)
    (tmp_path / "chip.h").write_text(header(CHIP))
    run(*compiler("gcc", "cc"), "-std=c99", *STRICT, "-I", tmp_path, READER, "-o", tmp_path / "reader")
    files = (tmp_path / "program.json", tmp_path / "program.weights")
    found = run(tmp_path / "reader", *files, input=args[0].numpy().tobytes())
    expected = model(*args).detach()
    torch.testing.assert_close(torch.frombuffer(bytearray(found), dtype=torch.float32).view_as(expected), expected)


def test_arguments_have_the_names_and_types_of_the_schema():
    chip = decomp.Target("2nd chip", ["sum.dim_IntList", "clamp", "copysign.Scalar", "index.Tensor"])
    text = header(chip.legal_if("convolution", lambda call: call.argument("groups") == 1, "groups must be */ 1"))
    sum_ = text[text.index("typedef struct", text.index("/* aten::sum.dim_IntList(")) :]
    assert sum_[: sum_.index(";\n\n")].splitlines() == [
        "typedef struct {",
        "    decomp_tensor *self;",
        "    const decomp_ints *dim;",
        "    bool keepdim;",
        "    decomp_optional_dtype dtype;",
        "} n2nd_chip_sum_dim_IntList",
    ]
    assert "    decomp_optional_number min;\n    decomp_optional_number max;\n} n2nd_chip_clamp_default;" in text
    assert "    decomp_tensor *min;\n    decomp_tensor *max;\n} n2nd_chip_clamp_Tensor;" in text
    assert "    decomp_number other;\n} n2nd_chip_copysign_Scalar;" in text
    assert "    decomp_tensors indices;\n" in text
    assert "   only if groups must be * / 1 */" in text
    fused = header(decomp.Target("fused", ["relu", patterns.linear_relu]))
    assert fused.count("    X(") - fused[: fused.index("FUSED_OPS")].count("    X(") == 1  # a pattern has no schema
    assert 'X(sum_dim_IntList, "aten.sum.dim_IntList")' in text
