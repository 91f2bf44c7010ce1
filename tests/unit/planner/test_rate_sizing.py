"""Sizes of single operators in the planner `rate`."""

from hypothesis import given
from hypothesis import strategies as st

from tests.effort import examples
from weir_planners.rate.sizing import Demand
from weir_predictor import CapacityCurve


@given(
    st.floats(1e-4, 1.0),
    st.just(0.0) | st.floats(1e-3, 0.9),
    st.just(0.0) | st.floats(1e-3, 0.95),
    st.booleans(),
    st.integers(1, 64),
    st.floats(0.1, 1e5),
)
@examples(200)
def test_an_operator_that_needs_all_has_no_smaller_size(  # noqa: PLR0917 - as many as hypothesis draws
    own: float, share: float, hot: float, falls: bool, now: int, rate: float
) -> None:
    """The cheap test agrees with the search for the smallest parallelism, also where more subtasks do less."""
    curve = (
        CapacityCurve(own, coherence_seconds=share * own) if falls else CapacityCurve(own, share * own, hot_share=hot)
    )
    demand = Demand(
        operator="work",
        now=now,
        min=1,
        max=64,
        useful=64,
        best=curve.best,
        curve=curve,
        load=rate,
        utilization=1.0,
        is_bound=True,
        waiting=0.0,
        restart_seconds=0.0,
    )
    needed = curve.needed(rate)
    if demand.needs_all(rate):
        assert needed is None or needed >= now
