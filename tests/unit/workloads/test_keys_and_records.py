"""Records: a key drawn by Zipf's law, and a line of the wanted size."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weir_replay.trace import MAX_BYTES
from workloads.loadgen.generator import Keys, Records


def test_without_skew_all_keys_are_alike() -> None:
    """100 keys, 100,000 records: each has its thousand, give or take a fifth."""
    drawn = Counter(Keys(100).draw(100_000))
    assert len(drawn) == 100
    assert 800 < min(drawn.values()) < max(drawn.values()) < 1200


def test_with_skew_the_first_key_has_its_share() -> None:
    """Exponent 1 over 100 keys: the first has 1/H(100) = 19.3 % and the second half of it."""
    drawn = Counter(Keys(100, skew=1.0).draw(100_000))
    (first, count), (_, second) = drawn.most_common(2)
    assert first == b"customer-000000"
    assert count / 100_000 == pytest.approx(0.1928, rel=0.05)
    assert second / count == pytest.approx(0.5, rel=0.1)


def test_the_same_seed_draws_the_same_keys() -> None:
    """So that a run can be repeated."""
    assert Keys(50, 0.8, seed=7).draw(500) == Keys(50, 0.8, seed=7).draw(500)
    assert Keys(50, 0.8, seed=7).draw(500) != Keys(50, 0.8, seed=8).draw(500)


@pytest.mark.parametrize(("count", "skew", "name"), [(0, 0.0, "count"), (5, -0.1, "skew")])
def test_impossible_keys_are_refused_by_name(count: int, skew: float, name: str) -> None:
    """No keys, or a negative exponent."""
    with pytest.raises(ValueError, match=name):
        Keys(count, skew)


@given(size=st.integers(0, MAX_BYTES), at=st.integers(1, 10**13))
def test_a_record_has_the_size_it_was_asked_for(size: int, at: int) -> None:
    """Unless its timestamp and key alone need more."""
    key = b"customer-000042"
    value = Records().value(at, key, size)
    assert value.startswith(b"%d;customer-000042;" % at)
    assert len(value) == max(size, len(str(at)) + len(key) + 2)
