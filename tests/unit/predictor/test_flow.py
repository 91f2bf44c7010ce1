"""How records flow: DS2's traversal, what is unknown behind an unknown, and how backpressure slows the sources."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.planner.build import SOURCE, WORK, analysis, topology
from weir_contracts import Edge, Operator, Topology
from weir_predictor.flow import arrivals_at, flow_of, ratios_of, reaching, throttled

JOIN = Topology(
    operators=[Operator(name=name, id=name) for name in ("clicks", "views", "parse", "join", "sink")],
    edges=[
        Edge(source="clicks", target="parse"),
        Edge(source="parse", target="join"),
        Edge(source="views", target="join"),
        Edge(source="join", target="sink"),
    ],
)
RATIOS: dict[tuple[str, str], float | None] = {
    ("clicks", "parse"): 1.0,
    ("parse", "join"): 0.5,
    ("views", "join"): 2.0,
    ("join", "sink"): 0.1,
}


def test_two_sources_meet() -> None:
    """100 clicks/s of which half pass, 30 views/s that are doubled: 110/s at the join, 11/s at the sink."""
    flow = flow_of(JOIN, RATIOS)
    rates = {"clicks": 100.0, "views": 30.0}
    assert [arrivals_at(flow, name, rates) for name in JOIN.names] == pytest.approx([100, 30, 100, 110, 11])


def test_paths_of_a_diamond_add_up() -> None:
    """Both branches of a split arrive where they meet again."""
    diamond = Topology(
        operators=[Operator(name=name, id=name) for name in ("in", "left", "right", "out")],
        edges=[
            Edge(source=a, target=b) for a, b in (("in", "left"), ("in", "right"), ("left", "out"), ("right", "out"))
        ],
    )
    ratios = {("in", "left"): 0.3, ("in", "right"): 0.7, ("left", "out"): 1.0, ("right", "out"): 2.0}
    assert arrivals_at(flow_of(diamond, ratios), "out", {"in": 10.0}) == pytest.approx(17.0)


def test_behind_an_unknown_selectivity_everything_is_unknown() -> None:
    """Unknown is not 0: join and sink are left out, the operators before them are reported."""
    flow = flow_of(JOIN, {**RATIOS, ("parse", "join"): None})
    assert set(flow) == {"clicks", "views", "parse"}
    assert arrivals_at(flow, "sink", {"clicks": 100.0, "views": 30.0}) is None


def test_of_nothing_nothing_arrives_whatever_the_selectivity() -> None:
    """A source that brings 0 records/s adds 0, although its selectivity could not be measured; one that brings some leaves
    it unknown."""
    silent, busy = (analysis(arrivals=rate, selectivity=None) for rate in (0.0, 5.0))
    assert ratios_of(silent) == {(SOURCE, WORK): 0.0}
    assert ratios_of(busy) == {(SOURCE, WORK): None}


def test_an_operator_that_drops_all_passes_nothing_on() -> None:
    """A selectivity of 0 is known, and 0 arrive."""
    flow = flow_of(JOIN, {**RATIOS, ("join", "sink"): 0.0})
    assert arrivals_at(flow, "sink", {"clicks": 100.0, "views": 30.0}) == 0


def test_a_slow_operator_slows_the_sources_that_feed_it() -> None:
    """The join can do 55 of 110: both its sources are halved."""
    slowed = throttled(flow_of(JOIN, RATIOS), JOIN.names, {"join": 55.0}, {"clicks": 100.0, "views": 30.0})
    assert slowed == pytest.approx({"clicks": 50.0, "views": 15.0})


def test_a_slow_branch_leaves_the_other_source_alone() -> None:
    """Only clicks pass through parse."""
    slowed = throttled(flow_of(JOIN, RATIOS), JOIN.names, {"parse": 20.0}, {"clicks": 100.0, "views": 30.0})
    assert slowed == pytest.approx({"clicks": 20.0, "views": 30.0})


def test_unknown_capacity_holds_nothing_back() -> None:
    """No bottleneck is made up."""
    chain = topology(("a", "b"))
    assert throttled(flow_of(chain, {("a", "b"): 1.0}), chain.names, {}, {"a": 5.0}) == {"a": 5.0}


def test_what_reaches_an_operator_behind_a_small_one() -> None:
    """Parse does 20 of 100: so many reach what is behind it, half of them the join, where views bring 60 besides."""
    found = reaching(flow_of(JOIN, RATIOS), {"clicks": 100.0, "views": 30.0}, {"parse": 20.0})
    assert found == pytest.approx({"clicks": 20.0, "views": 30.0, "parse": 20.0, "join": 70.0, "sink": 7.0})


def test_sources_that_meet_at_a_small_operator_may_each_get_what_it_does() -> None:
    """The join does 55: of clicks alone that would be 110, of views alone 27.5. How they share it is not known; behind it
    come a tenth of 55."""
    found = reaching(flow_of(JOIN, RATIOS), {"clicks": 500.0, "views": 30.0}, {"join": 55.0})
    assert found == pytest.approx({"clicks": 110.0, "views": 27.5, "parse": 110.0, "join": 55.0, "sink": 5.5})


@given(*[st.floats(0, 1e6)] * 2, st.dictionaries(st.sampled_from(JOIN.names), st.floats(1e-3, 1e6)), st.floats(1, 100))
def test_more_at_one_source_never_takes_from_what_reaches_another_operator(
    clicks: float, views: float, capacities: dict[str, float], times: float
) -> None:
    """And nothing reaches an operator that no flow through the graph could bring."""
    flow = flow_of(JOIN, RATIOS)
    less = reaching(flow, {"clicks": clicks, "views": views}, capacities)
    more = reaching(flow, {"clicks": clicks * times, "views": views}, capacities)
    passing = throttled(flow, JOIN.names, capacities, {"clicks": clicks, "views": views})
    for name in JOIN.names:
        assert less[name] <= more[name] * (1 + 1e-9)
        assert (arrivals_at(flow, name, passing) or 0.0) <= less[name] * (1 + 1e-9)
