"""The topics job's arguments; what it does is tested on a real broker."""

import argparse

import pytest

from weir_runtime.topics import further, main


def test_a_further_topic() -> None:
    """A name may contain anything but ends before the last colon."""
    assert (further("orders:12").name, further("orders:12").partitions) == ("orders", 12)


@pytest.mark.parametrize("text", ["orders", ":3", "orders:", "orders:0", "orders:x", "orders:513", "orders:-1"])
def test_what_is_no_topic_is_refused(text: str) -> None:
    """In one line that shows the form."""
    with pytest.raises(argparse.ArgumentTypeError, match="is not NAME:PARTITIONS"):
        further(text)


def test_help_lists_the_arguments(capsys: pytest.CaptureFixture[str]) -> None:
    """Like every program of the loop."""
    with pytest.raises(SystemExit) as ended:
        main(["--help"])
    assert ended.value.code == 0
    assert "--also NAME:PARTITIONS" in capsys.readouterr().out
