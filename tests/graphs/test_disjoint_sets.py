"""Sets that are joined."""

from hypothesis import given, strategies as st

from decomp.graphs.disjoint_sets import DisjointSets


def test_an_unjoined_item_is_its_own_leader():
    sets = DisjointSets[str]()
    assert sets.of("a") == "a"


def test_the_leader_of_the_second_set_becomes_the_leader_of_both():
    sets = DisjointSets[str]()
    sets.join("a", "b")
    sets.join("c", "d")
    sets.join("a", "c")
    assert {sets.of(item) for item in "abcd"} == {"d"} and sets.of("e") == "e"


@given(st.lists(st.tuples(st.integers(0, 12), st.integers(0, 12)), max_size=30))
def test_items_are_in_one_set_if_a_chain_of_joins_leads_from_one_to_the_other(joins):
    sets, reached = DisjointSets[int](), {item: {item} for item in range(13)}
    for one, other in joins:
        sets.join(one, other)
        both = reached[one] | reached[other]
        reached.update(dict.fromkeys(both, both))
    assert all((sets.of(a) == sets.of(b)) == (b in reached[a]) for a in range(13) for b in range(13))
