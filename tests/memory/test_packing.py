"""Packing, against its definition: spans that overlap in time do not overlap in memory, and nothing is beyond the
end."""

import random

import pytest

from decomp.memory.packing import ALIGNMENT, MAX_MEAN_OVERLAP, Room, Span, align, pack


def meetings(spans, packing):
    for i, a in enumerate(spans):
        for j, b in enumerate(spans[:i]):
            (home, at), (other, there) = packing.places[i], packing.places[j]
            together = home == other and a.birth <= b.death and b.birth <= a.death
            if together and at < there + b.nbytes and there < at + a.nbytes:
                yield i, j


def drawn(seed, count, long=20):
    chance = random.Random(seed)
    for _ in range(count):
        birth = chance.randrange(60)
        yield Span(birth, birth + chance.randrange(long), chance.choice((1, 64, 100, 4096, 4097, 65536)))


def peak_bytes(spans):
    """The most bytes, aligned, that are alive at one step."""
    born = [(span.birth, 1, align(span.nbytes)) for span in spans]
    events = sorted(born + [(span.death + 1, 0, -align(span.nbytes)) for span in spans])
    now = most = 0
    # Ends sort before births at the same step, as memory that is freed there is free.
    for _, _, change in events:
        now += change
        most = max(most, now)
    return most


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("count", [1, 7, 60, 300])
def test_spans_alive_together_do_not_overlap(seed, count):
    spans = list(drawn(seed, count))
    rooms = [Room(until, 8192) for until in (10, 40)]
    packing = pack(spans, rooms)
    assert list(meetings(spans, packing)) == []
    for span, (room, offset) in zip(spans, packing.places):
        assert offset % ALIGNMENT == 0 and offset >= 0
        if room < 0:
            assert offset + span.nbytes <= packing.nbytes
        else:
            assert span.death < rooms[room].until and offset + span.nbytes <= rooms[room].nbytes


@pytest.mark.parametrize("seed", range(20))
def test_an_arena_is_no_smaller_than_what_is_alive_at_once_and_rarely_much_larger(seed):
    spans = list(drawn(seed, 200))
    assert peak_bytes(spans) <= pack(spans).nbytes <= 1.25 * peak_bytes(spans)


def test_memory_is_reused_when_it_is_no_longer_needed():
    chain = [Span(i, i + 1, 4096) for i in range(100)]
    assert pack(chain).nbytes == 2 * 4096


def test_a_small_one_takes_the_place_of_a_large_one():
    assert pack([Span(0, 1, 8192), Span(2, 3, 4096), Span(2, 3, 4096)]).nbytes == 8192


def test_the_last_step_of_one_and_the_first_of_another_are_together():
    assert pack([Span(0, 1, 64), Span(1, 2, 64)]).nbytes == 128


def test_memory_that_is_there_anyway_is_used_until_it_is_needed():
    packing = pack([Span(0, 3, 4096), Span(1, 4, 4096)], [Room(4, 4096)])
    assert packing.places == ((0, 0), (-1, 0)) and packing.nbytes == 4096


def test_a_span_does_not_end_past_the_memory_of_a_result():
    rooms = [Room(4, 100)]
    assert pack([Span(0, 3, 120)], rooms).places == ((-1, 0),)
    assert pack([Span(0, 3, 100)], rooms).places == ((0, 0),)
    assert pack([Span(0, 3, 64), Span(0, 3, 36)], rooms).places == ((0, 0), (0, 64))


def test_so_many_at_once_that_pairs_are_not_looked_at_are_packed_too():
    spans = list(drawn(0, 20 * MAX_MEAN_OVERLAP, long=60))
    packing = pack(spans)
    assert list(meetings(spans, packing)) == [] and packing.nbytes >= peak_bytes(spans)


def test_nothing_takes_no_memory():
    assert pack([]).nbytes == 0 and peak_bytes([]) == 0 and align(0) == 0 and align(1) == ALIGNMENT
