"""The way of a version: the chain of deltas with the fewest bytes."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from paramsync.remote.manifest import Edge, route

VERSIONS = range(1, 7)


@st.composite
def edges(draw: st.DrawFn) -> list[Edge]:
    """Deltas between few versions, with few sizes, so that many chains have as many bytes."""
    steps = st.tuples(st.sampled_from(VERSIONS), st.sampled_from(VERSIONS), st.integers(1, 3))
    drawn = draw(st.lists(steps, max_size=20))
    return [Edge(base, "", number, f"deltas/{at}", size) for at, (base, number, size) in enumerate(drawn)]


@given(edges=edges(), known=st.sets(st.sampled_from(VERSIONS)))
def test_the_way_to_a_version_has_the_fewest_bytes_and_of_these_the_fewest_deltas(
    edges: list[Edge], known: set[int]
) -> None:
    least = dict.fromkeys(known, (0, 0))
    for edge in sorted(edges, key=lambda edge: edge.base):
        if edge.base in least and edge.base < edge.number:
            cost, count = least[edge.base]
            through = cost + edge.size, count + 1
            least[edge.number] = min(through, least.get(edge.number, through))
    for number in VERSIONS:
        way = route(edges, known, number)
        assert (None if way is None else (sum(edge.size for edge in way), len(way))) == least.get(number)
        if way:
            numbers = [way[0].base, *(edge.number for edge in way)]
            assert [edge.base for edge in way] == numbers[:-1]
            assert (numbers[0] in known, numbers[-1]) == (True, number)
