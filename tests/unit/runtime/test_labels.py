"""Labels from outside are bounded."""

from weir_runtime.labels import OTHER, CardinalityLimiter


def test_the_first_few_stay_apart() -> None:
    """A counted one keeps its label, also at the limit."""
    few = CardinalityLimiter(2)
    assert [few(v) for v in ("a", "b", "c", "a", "d")] == ["a", "b", OTHER, "a", OTHER]
