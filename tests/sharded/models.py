"""Small models over several processes: tensor-parallel, with a sequence or a vocabulary in parts, with experts on other
ranks, and with parameters in parts (FSDP2). Each has its twin, the model in one process."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
import torch.distributed as dist
from torch.distributed import _functional_collectives as functional
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)
from torch.nn import functional as F

from decomp_rules import samples


class MLP(nn.Module):
    """(*, 8) to (*, 8)."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(8, 16), nn.Linear(16, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.down(F.gelu(self.up(x)))
        return found


class Attention(nn.Module):
    """Causal attention, with as many heads as this process has."""

    def __init__(self, width: int = 16, head: int = 4) -> None:
        super().__init__()
        self.head = head
        self.q, self.k, self.v, self.o = (nn.Linear(width, width, bias=False) for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (part(x).unflatten(-1, (-1, self.head)).transpose(1, 2) for part in (self.q, self.k, self.v))
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        found: torch.Tensor = self.o(mixed.transpose(1, 2).flatten(2))
        return found


class Llama(nn.Module):
    """One block of a Llama, with its embedding and head."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(32, 16), nn.Linear(16, 32, bias=False)
        self.before, self.after, self.last = nn.RMSNorm(16), nn.RMSNorm(16), nn.RMSNorm(16)
        self.attention = Attention()
        self.gate, self.up, self.down = nn.Linear(16, 32, False), nn.Linear(16, 32, False), nn.Linear(32, 16, False)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.embedding(ids)
        x = x + self.attention(self.before(x))
        y = self.after(x)
        x = x + self.down(F.silu(self.gate(y)) * self.up(y))
        found: torch.Tensor = self.head(self.last(x))
        return found


class Normed(nn.Module):
    """A norm, whose input may be split along the sequence, and an MLP."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.mlp = nn.RMSNorm(8), MLP()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.mlp(self.norm(x))
        return found


class Embeddings(nn.Module):
    """The sum of two embeddings."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.kinds = nn.Embedding(16, 8), nn.Embedding(16, 8)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.words(ids) * self.kinds(ids)
        return found


class Experts(nn.Module):
    """Row block i of x goes to expert i, which is on rank i: (n * k, 8). In one process, all experts are here."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.experts = nn.ModuleList(nn.Linear(8, 8) for _ in range(size))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        parts = x.chunk(len(self.experts))
        return torch.cat([torch.tanh(expert(part)) for expert, part in zip(self.experts, parts)])


class OwnExpert(nn.Module):
    """The expert of this rank, to which the others send rows. Each rank has the same input."""

    def __init__(self, expert: nn.Module, size: int) -> None:
        super().__init__()
        self.expert, self.size = expert, size

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        splits = [x.shape[0] // self.size] * self.size
        mine = functional.all_to_all_single_autograd(x, splits, splits, dist.group.WORLD)
        found = torch.tanh(self.expert(mine))
        return functional.all_to_all_single_autograd(found, splits, splits, dist.group.WORLD)


class ConvNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm, self.head = nn.Conv2d(3, 8, 3), nn.GroupNorm(2, 8), nn.Linear(8, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.head(F.relu(self.norm(self.conv(x))).mean((2, 3)))
        return found


@dataclass(frozen=True)
class Sharded:
    """A model in one process, how it is distributed, and its input."""

    whole: Callable[[int], nn.Module]
    """The model, given the number of processes."""
    distribute: Callable[[nn.Module, Any], nn.Module]
    """The distributed model, given a copy and the mesh of devices."""
    example: Callable[[int], torch.Tensor]
    of_rank: Callable[[int], str] | None = None
    """The submodule of `whole` that is on a rank, of which this process has the parameters only; their gradients are
    sums over ranks."""


def parallel(**plan: Any) -> Callable[[nn.Module, Any], nn.Module]:
    named = {name.replace("__", "."): style for name, style in plan.items()}
    return lambda model, mesh: parallelize_module(model, mesh, named)


def _along_the_sequence(model: nn.Module, mesh: Any) -> nn.Module:
    """The input is split along the sequence, normed in parts, and joined for the MLP."""
    split = PrepareModuleInput(input_layouts=(Replicate(),), desired_input_layouts=(Shard(1),), use_local_output=True)
    joined = PrepareModuleInput(input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),))
    layers = {"norm": SequenceParallel(use_local_output=True), "mlp": joined, "mlp.up": ColwiseParallel()}
    parallelize_module(model, mesh, {**layers, "mlp.down": RowwiseParallel()})
    return parallelize_module(model, mesh, split)


def in_parts(*names: str) -> Callable[[nn.Module, Any], nn.Module]:
    """FSDP2 of these submodules, then of the model."""

    def distribute(model: nn.Module, mesh: Any) -> nn.Module:
        for name in names:
            fully_shard(model.get_submodule(name), mesh=mesh)
        fully_shard(model, mesh=mesh)
        return model

    return distribute


def _of_own_expert(model: nn.Module, mesh: Any) -> nn.Module:
    return OwnExpert(model.experts[mesh.get_local_rank()], mesh.size())


def floats(*shape: int) -> Callable[[int], torch.Tensor]:
    return lambda size: torch.randn(shape)


_WHOLE_OUT = dict(output_layouts=Replicate())
_HEADS = dict(q=ColwiseParallel(), k=ColwiseParallel(), v=ColwiseParallel(), o=RowwiseParallel())
MODELS: Mapping[str, Sharded] = {
    "MLP": Sharded(lambda size: MLP(), parallel(up=ColwiseParallel(), down=RowwiseParallel()), floats(4, 8)),
    "attention": Sharded(lambda size: Attention(), parallel(**_HEADS), floats(2, 8, 16)),
    "Llama": Sharded(
        lambda size: Llama(),
        parallel(
            embedding=RowwiseParallel(input_layouts=Replicate()),
            **{f"attention__{name}": style for name, style in _HEADS.items()},
            gate=ColwiseParallel(),
            up=ColwiseParallel(),
            down=RowwiseParallel(),
            head=ColwiseParallel(**_WHOLE_OUT),
        ),
        lambda size: torch.arange(16).reshape(2, 8),
    ),
    "embeddings": Sharded(
        lambda size: Embeddings(),
        parallel(
            words=RowwiseParallel(input_layouts=Replicate()),
            kinds=ColwiseParallel(**_WHOLE_OUT),
        ),
        lambda size: torch.arange(12).reshape(3, 4),
    ),
    "sequence in parts": Sharded(lambda size: Normed(), _along_the_sequence, floats(2, 8, 8)),
    "experts": Sharded(Experts, _of_own_expert, lambda size: torch.randn(2 * size, 8), "experts.{}".format),
    "ConvNet, FSDP": Sharded(lambda size: ConvNet(), in_parts("conv"), floats(2, 3, 8, 8)),
    "GPT, FSDP": Sharded(
        lambda size: samples.model("gpt")[0], in_parts("blocks.0"), lambda size: samples.model("gpt")[1][0]
    ),
}
