"""Fake tensors made from the attributes of another are those that the constructor makes."""

from __future__ import annotations

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from decomp.metadata import fakes
from decomp.metadata.fakes import Fakes

CPU = torch.device("cpu")


def meta(dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.empty_strided((2, 3), (1, 2), dtype=dtype, device="meta")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.bool, torch.complex64])
def test_they_are_as_the_constructor_makes_them(dtype):
    mode = FakeTensorMode()
    make = Fakes(mode)
    first, second = make.make(meta(dtype), CPU), make.make(meta(dtype), CPU)
    expected = fakes._state(FakeTensor(mode, meta(dtype), CPU))
    assert fakes._state(first) == expected and fakes._state(second) == expected
    assert (second + second).fake_mode is mode


def test_the_second_does_not_go_through_the_constructor(monkeypatch):
    make = Fakes(FakeTensorMode())
    make.make(meta(), CPU)
    monkeypatch.setattr(fakes, "FakeTensor", lambda *_: pytest.fail("the constructor was called"))
    monkeypatch.setattr(fakes, "fake_with_attributes", lambda elem, device, attributes: device)
    assert make.make(meta(), CPU) == CPU


def test_each_has_a_storage_and_memos_of_its_own():
    make = Fakes(FakeTensorMode())
    first, second = make.make(meta(), CPU), make.make(meta(), CPU)
    assert first.untyped_storage()._cdata != second.untyped_storage()._cdata
    first.nonzero_memo = 3
    assert second.nonzero_memo is None and make.make(meta(), CPU).nonzero_memo is None


def test_a_mode_of_another_class_goes_through_the_constructor():
    class Other(FakeTensorMode):
        pass

    make = Fakes(Other())
    assert isinstance(make.make(meta(), CPU), FakeTensor) and not make._attributes


def test_a_patched_constructor_is_called(monkeypatch):
    seen: list[object] = []
    stock = FakeTensor.__init__
    monkeypatch.setattr(FakeTensor, "__init__", lambda self, *a, **k: (seen.append(a), stock(self, *a, **k))[1])
    make = Fakes(FakeTensorMode())
    make.make(meta(), CPU), make.make(meta(), CPU)
    assert len(seen) == 2


def test_unknown_internals_go_through_the_constructor(monkeypatch):
    monkeypatch.setattr(fakes, "_internals_are_known", lambda: False)
    make = Fakes(FakeTensorMode())
    assert make.make(meta(), CPU).device == CPU and not make._attributes


def test_the_internals_of_this_torch_are_known():
    assert fakes._internals_are_known()
