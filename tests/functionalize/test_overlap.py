"""Whether tensors overlap, by looking at every element."""

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from decomp.functionalize import overlap as module
from decomp.functionalize.overlap import memory_range_of, overlap, overlaps_itself


def elements(tensor, wide):
    """The bytes of `wide` that a view of it looks at."""
    first = tensor.data_ptr() - wide.data_ptr()
    places = torch.zeros((), dtype=torch.int64) + first
    for size, stride in zip(tensor.shape, tensor.stride()):
        places = places.unsqueeze(-1) + torch.arange(size) * stride * tensor.itemsize
    return {int(at) + i for at in places.flatten() for i in range(tensor.itemsize)}


VIEWS = {
    "all": lambda w: w,
    "row": lambda w: w[1],
    "rows": lambda w: w[2:],
    "column": lambda w: w[:, 3],
    "left": lambda w: w.chunk(2, 1)[0],
    "right": lambda w: w.chunk(2, 1)[1],
    "even": lambda w: w[:, ::2],
    "odd": lambda w: w[:, 1::2],
    "odd rows": lambda w: w[1::2].t(),
    "diagonal": lambda w: w.diagonal(),
    "next diagonal": lambda w: w.diagonal(1),
    "windows": lambda w: w.unfold(1, 3, 2),
    "expanded": lambda w: w[0].expand(5, 6),
    "one": lambda w: w[3, 4],
    "halves": lambda w: w.view(torch.int32)[:, 1::4],
    "empty": lambda w: w[:0],
}


@pytest.mark.parametrize("one", VIEWS)
@pytest.mark.parametrize("two", VIEWS)
def test_views_of_one_buffer_overlap_where_they_have_an_element_in_common(one, two):
    wide = torch.zeros(4, 6, dtype=torch.float64)
    a, b = VIEWS[one](wide), VIEWS[two](wide)
    wanted = not elements(a, wide).isdisjoint(elements(b, wide))
    assert overlap(memory_range_of(a), memory_range_of(b)) == wanted
    with FakeTensorMode():
        fake = torch.zeros(4, 6, dtype=torch.float64)
        assert overlap(memory_range_of(VIEWS[one](fake)), memory_range_of(VIEWS[two](fake))) == wanted


REPEATING = {
    "steps that cross": lambda w: w.as_strided((3, 3), (2, 3)),
    "steps that pass each other": lambda w: w.as_strided((2, 2), (2, 3)),
    "one of each": lambda w: w.as_strided((1, 4), (0, 1)),
}


@pytest.mark.parametrize("name", {**VIEWS, **REPEATING})
def test_a_view_overlaps_itself_where_it_has_more_elements_than_memory(name):
    wide = torch.zeros(4, 6, dtype=torch.float64)
    view = {**VIEWS, **REPEATING}[name]
    wanted = len(elements(view(wide), wide)) < view(wide).numel() * view(wide).itemsize
    assert overlaps_itself(view(wide)) == wanted
    with FakeTensorMode():
        assert overlaps_itself(view(torch.zeros(4, 6, dtype=torch.float64))) == wanted


def test_buffers_of_their_own_do_not_overlap():
    a, b = torch.zeros(4), torch.zeros(4)
    assert not overlap(memory_range_of(a), memory_range_of(b)) and overlap(
        memory_range_of(a), memory_range_of(a.detach())
    )
    with FakeTensorMode():
        assert not overlap(memory_range_of(torch.zeros(4)), memory_range_of(torch.zeros(4)))


def test_memory_may_belong_to_somebody_else():
    data = bytearray(16)
    assert overlap(
        memory_range_of(torch.frombuffer(data, dtype=torch.float32)),
        memory_range_of(torch.frombuffer(data, dtype=torch.int8)),
    )


def test_large_interleaved_views_are_compared_by_their_runs():
    wide = torch.empty(2, 2, 1 << 30, device="meta")
    fake = FakeTensorMode().from_tensor(wide)
    assert not overlap(memory_range_of(fake[:, 0]), memory_range_of(fake[:, 1])) and overlap(
        memory_range_of(fake[:, 0]), memory_range_of(fake[1])
    )


def test_what_would_take_too_long_to_compare_is_taken_to_overlap(monkeypatch):
    monkeypatch.setattr(module, "_LARGEST_SPAN", 10)
    wide = torch.zeros(4, 7)
    assert overlap(memory_range_of(wide[:, 0]), memory_range_of(wide[:, 1]))


def test_what_has_no_memory_overlaps_with_nothing():
    x = torch.zeros(3)
    assert (
        memory_range_of(x.to_sparse()) is None
        and memory_range_of(3) is None
        and memory_range_of(torch.zeros(0)) is None
    )
    seen = []
    torch.vmap(lambda row: (seen.append(memory_range_of(row)), row)[1])(torch.zeros(2, 3))
    assert seen == [None]
