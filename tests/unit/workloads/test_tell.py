"""Telling a running load generator what to produce, from beside it."""

import pytest

from workloads.loadgen.tell import main, parse


def test_what_is_named_is_changed() -> None:
    """Null goes back to the trace; what is not named stays."""
    assert parse(["rate=2400", "factor=1.5"]) == {"rate": 2400, "factor": 1.5}
    assert parse(["rate=null", "paused=false"]) == {"rate": None, "paused": False}


@pytest.mark.parametrize(
    ("argument", "said"),
    [
        ("rate", "is not name=value"),
        ("rate=", "is not name=value"),
        ("rate=fast", "is not name=value"),
        ("speed=3", "there are rate, factor"),
        ("rate=-1", "rate: Input should be greater"),
        ("rate=NaN", "rate: Input should be"),
    ],
)
def test_what_cannot_be_is_said(argument: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    """In one line, and before anybody is asked."""
    assert main([argument]) == 2
    assert said in capsys.readouterr().err
