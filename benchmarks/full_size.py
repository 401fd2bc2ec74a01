"""Families of transformers at the sizes that their authors published, without weights: exported on the meta device and
lowered to two targets, each in a process of its own with nothing cached.

    python -m benchmarks.full_size [NAME ...]
    python -m benchmarks.full_size --table

The first writes `benchmarks/results/full_size.json` (with names, these rows alone), and both write the page
`docs/results/full-size.md` from it. Besides time and memory it says whether the plan of the whole model is that of a
copy with few layers: whether each distinct call of the model is one of the copy's, and is lowered by the same rule.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import date
import json
import os
from pathlib import Path
import platform
import resource
import sys
import time
from typing import Any

import decomp
from decomp.cache_directory import VARIABLE
from decomp.derive.decisions import Derived, Plan
from decomp.errors import count_noun
from decomp.files import write_atomically
from decomp.ir.signature import Signatures
from decomp.jobs import Failed, answers, within
from decomp.records import one_row_a_line
from decomp.supported import torch_version
from decomp.tables import Table
from decomp.tools.cli.arguments import load_model
from decomp_rules import targets

ROOT = Path(__file__).parent.parent
RECORDS = ROOT / "benchmarks" / "results" / "full_size.json"
PAGE = ROOT / "docs" / "results" / "full-size.md"
TIMEOUT = 900.0
TARGETS = ("core_aten", "tinygrad")


@dataclass(frozen=True)
class Family:
    """A model by its configuration, and the settings that make a copy with few layers of it."""

    spec: str
    """What follows `hf:`; no settings: the size that the configuration has by itself."""
    few: str
    """Settings of the copy: as many layers as the model has kinds of them."""


@dataclass(frozen=True)
class Lowered:
    """A model that was lowered to one target."""

    seconds: float
    """Of the processor."""
    calls: int
    """After the lowering, simplified."""
    blocked: tuple[str, ...]
    """Ops that do not reach the target."""
    apart: int
    """Distinct calls that the copy with few layers has not, or lowers otherwise."""


@dataclass(frozen=True)
class Row:
    """What was measured of a family."""

    name: str
    spec: str
    parameters: int
    calls: int
    distinct: int
    """Calls that differ in the op, its operands' metadata or its other arguments."""
    export_seconds: float
    """Of the processor, also for making the model."""
    peak_bytes: int
    """The largest resident set of the process, PyTorch and transformers included."""
    lowered: Mapping[str, Lowered]
    refused: str = ""
    """Why there is nothing else."""


_LAYERS = "num_hidden_layers=2"
FAMILIES: Mapping[str, Family] = {
    "BERT large": Family(
        "bert,hidden_size=1024,num_hidden_layers=24,num_attention_heads=16,intermediate_size=4096", _LAYERS
    ),
    "GPT-2 XL": Family("gpt2,n_layer=48,n_embd=1600,n_head=25", "n_layer=2"),
    "T5 11B": Family(
        "t5,d_model=1024,d_kv=128,d_ff=65536,num_heads=128,num_layers=24,num_decoder_layers=24",
        "num_layers=2,num_decoder_layers=2",
    ),
    "Whisper large": Family(
        "whisper,d_model=1280,encoder_layers=32,decoder_layers=32,encoder_attention_heads=20,"
        "decoder_attention_heads=20,encoder_ffn_dim=5120,decoder_ffn_dim=5120",
        "encoder_layers=2,decoder_layers=2",
    ),
    "Llama 2 70B": Family(
        "llama,hidden_size=8192,intermediate_size=28672,num_hidden_layers=80,num_attention_heads=64,"
        "num_key_value_heads=8",
        _LAYERS,
    ),
    "Mistral 7B": Family("mistral", _LAYERS),
    "Mixtral 8x7B": Family("mixtral", _LAYERS),
    "Qwen2 7B": Family(
        "qwen2,hidden_size=3584,intermediate_size=18944,num_hidden_layers=28,num_attention_heads=28,"
        "num_key_value_heads=4,vocab_size=152064",
        _LAYERS,
    ),
    "Qwen3 32B": Family(
        "qwen3,hidden_size=5120,intermediate_size=25600,num_hidden_layers=64,num_attention_heads=64,"
        "num_key_value_heads=8",
        _LAYERS,
    ),
    "Gemma 2 27B": Family(
        "gemma2,hidden_size=4608,intermediate_size=36864,num_hidden_layers=46,num_attention_heads=32,"
        "num_key_value_heads=16,head_dim=128",
        _LAYERS,
    ),
    "Phi-3 mini": Family("phi3", _LAYERS),
    "GPT-NeoX 20B": Family("gpt_neox", _LAYERS),
    "BLOOM 176B": Family("bloom,hidden_size=14336,n_layer=70,n_head=112", "n_layer=2"),
    "Falcon 40B": Family(
        "falcon,hidden_size=8192,num_hidden_layers=60,num_attention_heads=128,num_kv_heads=8,"
        "ffn_hidden_size=32768,new_decoder_architecture=true",
        _LAYERS,
    ),
    "OPT 66B": Family(
        "opt,hidden_size=9216,word_embed_proj_dim=9216,num_hidden_layers=64,num_attention_heads=72,ffn_dim=36864",
        _LAYERS,
    ),
    "MPT 30B": Family("mpt,d_model=7168,n_heads=64,n_layers=48", "n_layers=2"),
    "Mamba 2.8B": Family("mamba,hidden_size=2560,num_hidden_layers=64,tokens=8", _LAYERS),
    "DeepSeek V2 236B": Family(
        "deepseek_v2,hidden_size=5120,intermediate_size=12288,moe_intermediate_size=1536,num_hidden_layers=60,"
        "num_attention_heads=128,num_key_value_heads=128,n_routed_experts=160,n_group=8,topk_group=3,"
        "num_experts_per_tok=6,q_lora_rank=1536,kv_lora_rank=512,topk_method=group_limited_greedy",
        _LAYERS,
    ),
    "DeepSeek V3 671B": Family("deepseek_v3", "num_hidden_layers=2,first_k_dense_replace=1"),
    "gpt-oss 120B": Family("gpt_oss", _LAYERS),
    "wav2vec 2.0 large": Family(
        "wav2vec2,hidden_size=1024,num_hidden_layers=24,num_attention_heads=16,intermediate_size=4096", _LAYERS
    ),
    "ViT huge": Family(
        "vit,hidden_size=1280,num_hidden_layers=32,num_attention_heads=16,intermediate_size=5120,patch_size=14", _LAYERS
    ),
    "DINOv2 giant": Family(
        "dinov2,hidden_size=1536,num_hidden_layers=40,num_attention_heads=24,image_size=518,patch_size=14,"
        "use_swiglu_ffn=true",
        _LAYERS,
    ),
    "CLIP ViT-L/14": Family(
        "clip,projection_dim=768,text_config.hidden_size=768,text_config.num_attention_heads=12,"
        "text_config.intermediate_size=3072,vision_config.hidden_size=1024,vision_config.num_hidden_layers=24,"
        "vision_config.num_attention_heads=16,vision_config.intermediate_size=4096,vision_config.patch_size=14",
        "text_config.num_hidden_layers=2,vision_config.num_hidden_layers=2",
    ),
    "SigLIP so400m": Family(
        "siglip,text_config.hidden_size=1152,text_config.num_hidden_layers=27,text_config.num_attention_heads=16,"
        "text_config.intermediate_size=4304,vision_config.hidden_size=1152,vision_config.num_hidden_layers=27,"
        "vision_config.num_attention_heads=16,vision_config.intermediate_size=4304,vision_config.image_size=384,"
        "vision_config.patch_size=14",
        "text_config.num_hidden_layers=2,vision_config.num_hidden_layers=2",
    ),
    "LLaVA 1.5 7B": Family("llava", "text_config.num_hidden_layers=2,vision_config.num_hidden_layers=2"),
    "Qwen2-VL 72B": Family(
        "qwen2_vl,text_config.hidden_size=8192,text_config.intermediate_size=29568,text_config.num_hidden_layers=80,"
        "text_config.num_attention_heads=64,text_config.num_key_value_heads=8,vision_config.hidden_size=8192",
        "text_config.num_hidden_layers=2,vision_config.depth=2",
    ),
}


@dataclass(frozen=True)
class Measurement:
    """A job: measure one family."""

    name: str
    family: Family

    def run(self) -> Row:
        """In a process of its own: the peak of memory is that of the process."""
        began = time.process_time()
        program = load_model(f"hf:{self.family.spec}")
        seconds = time.process_time() - began
        lowerings, times = {}, {}
        for name in TARGETS:
            began = time.process_time()
            lowerings[name] = _lower(program, name)
            times[name] = time.process_time() - began
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
        copy, signatures = load_model(f"hf:{self.family.spec},{self.family.few}"), Signatures()
        plans = {name: decisions(each.plan, signatures) for name, each in lowerings.items()}
        lowered = {
            name: Lowered(
                times[name],
                sum(each.report().after.values()),
                tuple(blocker.op for blocker in each.blockers),
                len(plans[name] - decisions(_lower(copy, name).plan, signatures)),
            )
            for name, each in lowerings.items()
        }
        distinct = len({key for key, _ in plans[TARGETS[0]]})
        calls = sum(lowerings[TARGETS[0]].report().before.values())
        parameters = {id(each): each.numel() for each in program.state_dict.values()}
        size = sum(parameters.values())
        return Row(self.name, self.family.spec, size, calls, distinct, seconds, peak, lowered)


def _lower(program: Any, target: str) -> decomp.Lowering:
    return decomp.lower(program, to=targets.get(target), training=False, partial=True)


def decisions(plan: Plan, signatures: Signatures) -> set[tuple[Any, str]]:
    """The distinct calls of a program, each with what becomes of it."""
    calls = ((node, decision) for node, decision in plan if node.op == "call_function")
    return {
        (signatures.of(node).key, str(each.rule) if isinstance(each, Derived) else type(each).__name__)
        for node, each in calls
    }


def main(words: Sequence[str]) -> None:
    """Measure the families of these names, or all, and write records and page."""
    unknown = sorted({*words} - {*FAMILIES, "--table"})
    if unknown:
        sys.exit(f"no family {unknown[0]!r}. Available: {', '.join(FAMILIES)}")
    if "--table" not in words:
        os.environ[VARIABLE] = "off"
        for name in words or FAMILIES:
            job = Measurement(name, FAMILIES[name])
            ((_, found),) = answers([job], 1, within(TIMEOUT))  # a thread of its own has a process of its own
            row = Row(name, job.family.spec, 0, 0, 0, 0.0, 0, {}, str(found)) if isinstance(found, Failed) else found
            print(*cells(asdict(row)), sep="  ", flush=True)
            _save(row)
    with write_atomically(PAGE) as unfinished:
        unfinished.write_text(page(json.loads(RECORDS.read_text(encoding="utf-8"))), encoding="utf-8")


def _save(row: Row) -> None:
    """Replace the row of a family in the records."""
    old = json.loads(RECORDS.read_text(encoding="utf-8"))["rows"] if RECORDS.exists() else []
    rows = {each["name"]: each for each in old} | {row.name: asdict(row)}
    facts = {"torch": torch_version(), "transformers": _transformers(), "python": platform.python_version()}
    data = {"date": str(date.today()), **facts, "rows": [rows[name] for name in FAMILIES if name in rows]}
    with write_atomically(RECORDS) as unfinished:
        unfinished.write_text(one_row_a_line(data), encoding="utf-8")


def _transformers() -> str:
    from importlib.metadata import version

    return version("transformers")


COLUMNS = (
    ">10⁹ parameters",
    ">calls",
    ">distinct",
    ">export, s",
    *(f">{name}, {what}" for name in TARGETS for what in ("s", "calls")),
    ">peak, MB",
    "plan of few layers",
    "blocked",
)


def cells(row: Mapping[str, Any]) -> tuple[Any, ...]:
    """A row of the table, behind the name."""
    if row["refused"]:
        return (row["name"], *[""] * (len(COLUMNS) - 1), row["refused"])
    lowered = [row["lowered"][name] for name in TARGETS]
    blocked = dict.fromkeys(op for each in lowered for op in each["blocked"])
    apart = sum(each["apart"] for each in lowered)
    return (
        row["name"],
        f"{row['parameters'] / 1e9:.3g}",
        f"{row['calls']:,}",
        row["distinct"],
        f"{row['export_seconds']:.1f}",
        *(cell for each in lowered for cell in (f"{each['seconds']:.1f}", f"{each['calls']:,}")),
        f"{row['peak_bytes'] / 1e6:,.0f}",
        "the same" if not apart else f"{count_noun(apart, 'call')} apart",
        ", ".join(blocked),
    )


_TEXT = """\
Families of transformers {transformers}, at the size that their authors published, without weights: exported on the
meta device with 128 tokens (or as many as the model has positions, and 8 for Mamba, whose scan is unrolled), lowered
for inference to Core ATen and to tinygrad, and verified, each in a process of its own with nothing cached.
`python -m benchmarks.full_size` made this page with torch {torch} and Python {python}, on {date}. Seconds are of one
processor, on a machine that others used as well; making and exporting the model, in the column "export", is the time of
PyTorch and transformers. Distinct calls differ in the op, the metadata of operands, or other arguments. "Plan of few
layers": whether each of them is a call of a copy with as many layers as there are kinds, lowered by the same rule. The
peak includes what PyTorch and transformers take themselves, about 400 MB."""


def page(records: Mapping[str, Any]) -> str:
    """The page of the records."""
    return "\n".join(_lines(records)) + "\n"


def _lines(records: Mapping[str, Any]) -> Iterator[str]:
    yield "# Models at full size"
    yield ""
    yield from _TEXT.format(**records).splitlines()
    yield ""
    yield from Table(("family", *COLUMNS), [cells(row) for row in records["rows"]]).markdown()


if __name__ == "__main__":
    from benchmarks import full_size  # by this name other processes know the classes

    full_size.main(sys.argv[1:])
