"""Small parts: the analyses that are kept, settings, sentences."""

import json
from typing import cast

import pytest

from tests.unit.executor.builders import NOON, after, analysis, plan
from weir_contracts import Outcome, changes, policy_of, sizes
from weir_engines.driver import Refusal
from weir_executor.analyses import LatestAnalyses
from weir_executor.core.history import ActionHistory, record_refusal
from weir_executor.core.parameters import Rules
from weir_executor.driver_calls import Targets
from weir_executor.fence import Ownership
from weir_executor.knowledge import MemoryKnowledge
from weir_executor.settings import Settings
from weir_runtime.bus import Record
from weir_runtime.clock import FakeClock
from weir_runtime.reach import REACH
from weir_runtime.settings import load

APP = "shop/orders"


def record(offset: int, value: bytes | None, key: str | None = APP) -> Record:
    return Record("weir.analyses", 1, offset, key, value)


class TestLatestAnalyses:
    """Kept as they came, read on demand."""

    def test_the_newest_is_meant(self) -> None:
        """It is decoded once."""
        kept = LatestAnalyses()
        for offset, at in enumerate((NOON, after(5))):
            kept.note([record(offset, analysis(at=at).model_dump_json().encode())])
        newest = kept.get(APP)
        assert newest is not None and newest.observed_at == after(5)
        assert kept.get(APP) is newest

    def test_what_cannot_be_read_is_absent(self) -> None:
        """An old one in its place would be taken for the present."""
        kept = LatestAnalyses()
        kept.note([record(0, analysis().model_dump_json().encode()), record(1, b"{nonsense"), record(2, b"", None)])
        assert kept.get(APP) is None
        kept.note([record(3, analysis(at=after(9)).model_dump_json().encode())])
        newest = kept.get(APP)
        assert newest is not None and newest.observed_at == after(9)

    def test_it_can_be_forgotten(self) -> None:
        """By a tombstone, or when the partition goes."""
        kept = LatestAnalyses()
        kept.note([record(0, analysis().model_dump_json().encode()), record(1, None)])
        assert kept.get(APP) is None
        kept.forget("shop/nobody")


class TestSettings:
    """Environment variables, checked at start."""

    def test_they_become_the_rules(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """By the same names; what is not set has the rules' own defaults."""
        monkeypatch.setenv("WEIR_EXECUTOR_SETTLE_SECONDS", "3")
        monkeypatch.setenv("WEIR_EXECUTOR_MAX_ACTIONS", "77")
        assert load(Settings).rules() == Rules(settle_seconds=3.0, max_actions=77)

    def test_a_wrong_one_ends_the_start_with_its_name(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """One line, code 2."""
        monkeypatch.setenv("WEIR_EXECUTOR_FLEET_SHARE", "1.5")
        with pytest.raises(SystemExit) as ended:
            load(Settings)
        assert ended.value.code == 2
        assert capsys.readouterr().err.startswith("settings: WEIR_EXECUTOR_FLEET_SHARE: ")

    def test_no_secret_is_printed(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """The token of the knowledge service is one."""
        monkeypatch.setenv("WEIR_KNOWLEDGE_TOKEN", "0123456789abcdef-secret")
        assert "0123456789abcdef-secret" not in json.dumps(load(Settings).describe())


def test_sentences_fit_a_line() -> None:
    """A thousand operators with names of 380 letters, and an error of a megabyte."""
    large = {f"{i}{'x' * 375}": 1 for i in range(1000)}
    assert sizes(large).endswith(" 1 and 999 more")
    assert changes(large, dict.fromkeys(large, 2)).endswith(" 1 → 2 and 999 more")
    published = record_refusal(ActionHistory(), plan(), Refusal("unreachable", "y" * 1_000_000), None, NOON).outcome
    assert len(Outcome.model_validate_json(published.model_dump_json()).sentence) == 160


async def test_a_policy_without_a_target_is_refused_before_any_driver() -> None:
    """A group may be advised on without one; an action of a time when it had one ends with a sentence."""
    targets = Targets(
        {},
        MemoryKnowledge(),
        FakeClock(),
        ownership=cast("Ownership", None),
        policies={},
        reach=REACH,
    )
    spec = {"application": {"consumerGroup": {"groupId": "orders"}}, "objective": {"maxLag": "30s"}}
    advised = policy_of(APP, signals={"kafka": {"bootstrapServers": "kafka:9092"}}, **spec)
    snapshot = await targets.observe_subject(advised.subject)
    assert not snapshot.reachable
    assert snapshot.refusal == Refusal("no-target", snapshot.reason)
    assert "name one in spec.target" in snapshot.reason
