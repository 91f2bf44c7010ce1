"""The state: bytes and back, versions, damage."""

import json

import pytest

from tests.unit.analyzer.story import Loop
from weir_analyzer.core import STATE_VERSION, AnalyzerState, UnreadableState


def test_a_state_survives_its_bytes() -> None:
    """The state read equals the state written, in every part."""
    loop = Loop()
    loop.watch(60)
    loop.job.rate = 900
    loop.watch(40)
    loop.job.restart({"enrich": 2})
    loop.watch(20)
    assert loop.memory is not None
    assert AnalyzerState.from_bytes(loop.memory.to_bytes()) == loop.memory


def test_another_version_is_refused() -> None:
    """The error names the version found and the one supported."""
    with pytest.raises(UnreadableState, match=f"version {STATE_VERSION + 1}"):
        AnalyzerState.from_bytes(json.dumps([STATE_VERSION + 1, 0]).encode())


@pytest.mark.parametrize(
    "state", [b"", b"{}", b"[]", b"null", b"\xff", b"[1]", b'[1,"a",0,"",null,[[],[]],{},{},[]]', b"[1,0,0]"]
)
def test_damage_is_refused(state: bytes) -> None:
    """Never an error of another kind: the shell knows what to do with this one."""
    with pytest.raises(UnreadableState):
        AnalyzerState.from_bytes(state)
