"""The command that sets the load of a running generator."""

import pytest

from workloads.loadgen.set_load import main, parse


def test_what_is_named_is_changed() -> None:
    """Null goes back to the trace; what is not named stays."""
    assert parse(["rate=2400", "factor=1.5"]) == {"rate": 2400, "factor": 1.5}
    assert parse(["rate=null", "paused=false"]) == {"rate": None, "paused": False}


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ("rate", "must be name=value"),
        ("rate=", "must be name=value"),
        ("rate=fast", "must be name=value"),
        ("speed=3", "unknown; fields are rate, factor"),
        ("rate=-1", "rate: Input should be greater"),
        ("rate=NaN", "rate: Input should be"),
    ],
)
def test_a_wrong_argument_is_named(argument: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    """In one line, and before anybody is asked."""
    assert main([argument]) == 2
    assert message in capsys.readouterr().err
