"""The forms of a call that write into memory that is there: its `out=` overload, and, for ops that work element by
element, over an operand that nobody needs any more. From schemas and tags, with the exceptions of `op_facts`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
import functools
from typing import Any

import torch
from torch import fx

from decomp.ir.call import metadata, nodes_in
from decomp.ir.op_facts import COPIES, NOT_INTO_MEMORY
from decomp.memory.running import result_memory
from decomp.metadata.strides import dense_order
from decomp.metadata.symbolic_sizes import expression
from decomp.ops import aten
from decomp.torch_internals.modes import COMPOSITE_IMPLICIT


@dataclass(frozen=True, slots=True)
class Form:
    """How the result of an overload gets into memory that is there."""

    out: Any
    """With the memory as `out=`. `copy_`, for ops that copy: it takes the memory, and then the operand."""
    inplace: torch._ops.OpOverload | None
    """Over the first operand."""
    elementwise: bool
    """Whether each element of the result depends on the elements at its place alone, so that an operand of the same
    shape may be written over."""

    @property
    def copies(self) -> bool:
        """Whether the op gives its operand anew."""
        return self.out is aten.copy_.default


NONE = Form(None, None, False)
NOTHING = Form(result_memory, None, False)
"""Of memory that another call fills."""


def form_of(node: fx.Node) -> Form:
    """How the result of a node gets into memory that is there; `NONE` where it cannot."""
    if node.target is result_memory:
        return NOTHING
    if node.op != "call_function" or not isinstance(node.target, torch._ops.OpOverload):
        return NONE
    return _form(node.target)


@functools.cache
def _form(overload: torch._ops.OpOverload) -> Form:
    schema, tags = overload._schema, overload.tags
    namespace, _, name = schema.name.partition("::")
    single = len(schema.returns) == 1 and str(schema.returns[0].type) == "Tensor"
    viewing = any(argument.alias_info is not None for argument in schema.arguments)
    if namespace != "aten" or not single or viewing or torch.Tag.nondeterministic_seeded in tags:
        return NONE
    if overload.has_kernel_for_dispatch_key(COMPOSITE_IMPLICIT):  # its `out=` overload is another composition
        return NONE
    if name in COPIES:
        return Form(aten.copy_.default, None, True)
    if name in NOT_INTO_MEMORY:
        return NONE
    elementwise = torch.Tag.pointwise in tags
    return Form(_out_overload(overload), _inplace_overload(overload) if elementwise else None, elementwise)


def _out_overload(overload: torch._ops.OpOverload) -> torch._ops.OpOverload | None:
    """The overload with the same arguments and `out=`, unless it is one that PyTorch's code generator made (it computes
    the result in other memory, and copies it)."""
    packet, given = overload.overloadpacket, _arguments(overload)
    for name in packet.overloads():
        candidate = getattr(packet, name)
        written = [argument for argument in candidate._schema.arguments if argument.is_out]
        if len(written) == 1 and written[0].name == "out" and _arguments(candidate) == given:
            return None if torch.Tag.generated in candidate.tags else candidate
    return None


def _inplace_overload(overload: torch._ops.OpOverload) -> torch._ops.OpOverload | None:
    packet = getattr(aten, f"{overload._schema.name.partition('::')[2]}_", None)
    for name in packet.overloads() if packet is not None else ():
        candidate = getattr(packet, name)
        written = candidate._schema.arguments[0].alias_info
        if _arguments(candidate) == _arguments(overload) and written is not None and written.is_write:
            return candidate
    return None


def _arguments(overload: torch._ops.OpOverload) -> list[tuple[str, str]]:
    return [(argument.name, str(argument.type)) for argument in overload._schema.arguments if not argument.is_out]


def operands_written_over(node: fx.Node) -> Iterator[fx.Node]:
    """The operands in whose memory a call may put its result, if nobody else needs what is there: of its dtype, sizes
    and strides, without gaps or overlap. Operands that share memory with one of these must be exactly as it is."""
    form, made = form_of(node), metadata(node)
    if not form.elementwise or not isinstance(made, torch.Tensor) or not is_dense(made):
        return
    operands = list(dict.fromkeys(nodes_in((node.args, node.kwargs))))
    if form.out is None:
        operands = [a for a in node.args[:1] if isinstance(a, fx.Node)] if form.inplace is not None else []
    wanted = geometry(made)
    for operand in operands:
        value = metadata(operand)
        if isinstance(value, torch.Tensor) and geometry(value) == wanted and is_dense(value):
            yield operand


def is_dense(value: torch.Tensor) -> bool:
    """Whether a tensor is plain memory without gaps or overlap, from the first byte of its storage."""
    plain = value.layout is torch.strided and not (value.is_conj() or value.is_neg() or value.is_quantized)
    if not plain or expression(value.storage_offset()) != 0:
        return False
    return is_static(value) and value.is_contiguous() or dense_order(value) is not None


def geometry(value: torch.Tensor) -> tuple[Any, ...]:
    """Where the elements of a tensor are in its storage. Equal for two only if they are at every size."""
    numbers = (*value.shape, *value.stride(), value.storage_offset())
    return value.dtype, value.device, value.dim(), *map(expression, numbers)


def is_static(value: torch.Tensor) -> bool:
    """Whether all sizes and strides are numbers."""
    return all(type(n) is int for n in (*value.shape, *value.stride(), value.storage_offset()))
