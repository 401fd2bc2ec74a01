"""Fake tensors: metadata without data. Making them public was requested in
https://github.com/pytorch/pytorch/issues/113456; the programs of `torch.export` and `torch.compile` contain them."""

from __future__ import annotations

from collections.abc import Iterator
import contextlib
from typing import Any

import torch
from torch._guards import (
    TracingContext as TracingContext,  # the state of `torch.compile` for the graph passed to a backend
    active_fake_mode as active_fake_mode,
    detect_fake_mode as detect_fake_mode,
)
from torch._subclasses import fake_impls as fake_impls
from torch._subclasses.fake_tensor import (
    DataDependentOutputException as DataDependentOutputException,
    DynamicOutputShapeException as DynamicOutputShapeException,
    FakeTensor as FakeTensor,
    FakeTensorConfig as FakeTensorConfig,
    FakeTensorMode as FakeTensorMode,
    UnsupportedOperatorException as UnsupportedOperatorException,
    unset_fake_temporarily as unset_fake_temporarily,
)

from decomp.torch_internals.versions import CHANGES


def fake_with_attributes(meta: torch.Tensor, device: torch.device, attributes: dict[str, Any]) -> FakeTensor:
    """The same tensor as `FakeTensor(mode, meta, device)`, given the attributes of another one of that mode and device.
    It takes half the time of the constructor; the equivalence is checked once (`metadata/fakes.py`)."""
    made: FakeTensor = torch.Tensor._make_subclass(
        FakeTensor, meta, False, dispatch_device=True, device_for_backend_keys=device
    )
    # As the constructor does. Otherwise `data_ptr()` of a fake tensor would be the null pointer instead of an error.
    if attributes["fake_mode"]._allow_unsafe_data_ptr_access:
        torch._C._set_warn_deprecated_on_mutable_data_ptr(made)
    else:
        torch._C._set_throw_on_mutable_data_ptr(made)
    made.__dict__.update(attributes)
    return made


def on_new_storage(meta: torch.Tensor) -> torch.Tensor:
    """A tensor on the meta device with sizes, strides and dtype of `meta`, on storage of its own. `_lazy_clone` copies
    symbolic sizes as they are, in 7 µs; `empty_strided` computes the bytes that they need, in 0.3 ms."""
    return meta._lazy_clone()


def dispatch_keys(value: torch.Tensor) -> str:
    """The dispatch keys of a tensor, in comparable form."""
    return str(torch._C._dispatch_keys(value))


def fakes_compute_it_otherwise(func: torch._ops.OpOverload) -> bool:
    """Whether fake tensors have a special implementation of an overload instead of its kernel for the meta device. (The
    registry is private: torch/_subclasses/fake_impls.py.)"""
    # What a library registers by `register_fake` comes before its kernel for the meta device.
    if torch._library.simple_registry.singleton.find(func.name()).fake_impl.kernel is not None:
        return True
    # Without such a kernel the fake mode decomposes the op, or runs its real kernel on zeros.
    if not torch._C._dispatch_has_computed_kernel_for_dispatch_key(func.name(), "Meta"):
        return True
    return any(applies(func) for applies, _ in fake_impls.op_implementations_checks)


@contextlib.contextmanager
def lstm_states_right() -> Iterator[None]:
    """Inside this context fake tensors give the states of an LSTM their shape. Before torch 2.13 they have a dimension
    more wherever a batch is of two or more: the formula of a layer squeezes dimension 1 in the place of dimension 0
    (https://github.com/pytorch/pytorch/pull/185716), and is the same function with that put right here."""
    if CHANGES.lstm_states_are_exported_right:
        yield
        return
    from torch._decomp import decompositions

    formula = decompositions.one_layer_lstm

    def put_right(*args: Any, **kwargs: Any) -> Any:
        out, states = formula(*args, **kwargs)
        return out, tuple(state.squeeze(0) if state.dim() == 3 else state for state in states)

    # `select_one_layer_lstm_function` looks the name up at each call, so the new function is found there.
    decompositions.one_layer_lstm = put_right
    try:
        yield
    finally:
        decompositions.one_layer_lstm = formula
