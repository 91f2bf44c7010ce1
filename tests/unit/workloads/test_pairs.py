"""Orders and payments of the load generator: one partition for all records of a customer."""

import pytest

from workloads.loadgen.__main__ import main
from workloads.loadgen.output import partition_of


def test_customers_are_spread_over_all_partitions() -> None:
    """Each partition has its share of 5,000 customers, to within a fifth."""
    counts = [0] * 12
    for number in range(5000):
        counts[partition_of(b"customer-%06d" % number, 12)] += 1
    assert all(0.8 * 5000 / 12 <= count <= 1.2 * 5000 / 12 for count in counts), counts


def test_one_topic_cannot_hold_both(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--bootstrap", "127.0.0.1:1", "--topic", "orders", "--payments-topic", "orders"])
    assert "argument --payments-topic: must differ from --topic" in capsys.readouterr().err
