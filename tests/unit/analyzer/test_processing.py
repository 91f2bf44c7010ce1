"""Bytes in, bytes out: what Spark's workers and the in-memory twin both do."""

import base64
from datetime import timedelta

import pytest

from tests.unit.analyzer.story import Job
from weir_analyzer.adapters import processing
from weir_analyzer.adapters.processing import Lost, StoredState, process, seeded
from weir_analyzer.core import AnalysisSettings
from weir_contracts import Analysis, DeadLetter, Observation
from weir_contracts.topics import ANALYSES, DEAD_LETTERS, OBSERVATIONS
from weir_runtime.bus import Outgoing, Record
from weir_runtime.clock import FakeClock
from weir_runtime.reading import MAX_OF_KEY, PERIOD_SECONDS, LetterRate

SETTINGS = AnalysisSettings()
TRACE = "00-" + "ab" * 16 + "-" + "cd" * 8 + "-01"


def _record(observation: Observation, offset: int, partition: int = 3) -> Record:
    return Record(
        topic=OBSERVATIONS.name,
        partition=partition,
        offset=offset,
        key=observation.application,
        value=observation.model_dump_json().encode(),
        headers={"traceparent": TRACE},
        timestamp=observation.observed_at + timedelta(milliseconds=50),
    )


def _records(count: int) -> list[Record]:
    job, records = Job(), []
    for offset in range(count):
        job.run_for(2)
        records.append(_record(job.observe(), offset))
    return records


def _analyses(out: list[Outgoing]) -> list[Analysis]:
    return [Analysis.model_validate_json(o.value or b"") for o in out if o.topic == ANALYSES.name]


def _letters(out: list[Outgoing]) -> list[DeadLetter]:
    return [DeadLetter.model_validate_json(o.value or b"") for o in out if o.topic == DEAD_LETTERS.name]


def test_an_analysis_carries_the_trace_and_its_type() -> None:
    """CloudEvents headers, the trace of the observation it came from, keyed by application."""
    state, out = process("shop/orders", None, _records(1), SETTINGS)
    assert state is not None
    assert (state.partition, state.offset) == (3, 0)
    assert out[0].key == "shop/orders"
    assert out[0].headers["ce_type"] == ANALYSES.type
    assert out[0].headers["ce_id"] == str(_analyses(out)[0].id)
    trace, span = out[0].headers["traceparent"].split("-")[1:3]
    assert trace == "ab" * 16
    assert span != "cd" * 8


def test_the_order_within_a_batch_is_that_of_the_observations() -> None:
    """However Spark hands them over: sorted by (observed_at, offset), each analysed once, all published in order."""
    records = _records(8)
    _, straight = process("shop/orders", None, records, SETTINGS)
    _, shuffled = process("shop/orders", None, records[::-1], SETTINGS)
    assert shuffled == straight
    times = [a.observed_at for a in _analyses(straight)]
    assert times == sorted(times)
    assert len(times) == 8


def test_one_batch_or_many_is_the_same() -> None:
    """State between batches changes nothing."""
    records = _records(10)
    whole, at_once = process("shop/orders", None, records, SETTINGS)
    state, bit_by_bit = None, []
    for record in records:
        state, out = process("shop/orders", state, [record], SETTINGS)
        bit_by_bit += out
    assert bit_by_bit == at_once
    assert state == whole


def test_what_cannot_be_read_is_a_dead_letter_and_the_rest_goes_on() -> None:
    """Each names place, reason and field, keeps the bytes, and repeats its id at a replay."""
    good = _records(3)
    broken = Record(OBSERVATIONS.name, 3, 10, "shop/orders", b'{"id": 7', {}, good[0].timestamp)
    no_field = Record(OBSERVATIONS.name, 3, 11, "shop/orders", b"{}", {}, good[0].timestamp)
    empty = Record(OBSERVATIONS.name, 3, 12, "shop/orders", None, {}, good[0].timestamp)
    state, out = process("shop/orders", None, [good[0], broken, good[1], no_field, empty, good[2]], SETTINGS)
    assert len(_analyses(out)) == 3
    letters = _letters(out)
    assert [(x.offset, x.service) for x in letters] == [(10, "analyzer"), (11, "analyzer"), (12, "analyzer")]
    assert base64.b64decode(letters[0].value_base64 or "") == b'{"id": 7'
    assert letters[1].field == "id"
    assert "no value" in letters[2].reason
    assert state is not None
    assert _letters(process("shop/orders", None, [broken], SETTINGS)[1])[0].id == letters[0].id


def test_many_unreadable_records_give_few_letters() -> None:
    """Ten of a key in a minute of the worker; the next letter counts those that were left out. Observations are analysed as
    before."""
    clock, good = FakeClock(), _records(2)
    rate = LetterRate(clock)
    broken = [Record(OBSERVATIONS.name, 3, 100 + i, "shop/orders", b"{", {}, good[0].timestamp) for i in range(500)]
    _, out = process("shop/orders", None, [good[0], *broken, good[1]], SETTINGS, rate=rate)
    assert len(_analyses(out)) == 2
    assert [letter.offset for letter in _letters(out)] == list(range(100, 100 + MAX_OF_KEY))
    clock.advance(PERIOD_SECONDS)
    _, later = process("shop/orders", None, broken[:1], SETTINGS, rate=rate)
    assert [letter.suppressed for letter in _letters(later)] == [500 - MAX_OF_KEY]


def test_a_foreign_key_is_refused() -> None:
    """An observation under another application's key would end up in the wrong state."""
    state, out = process("shop/other", None, _records(1), SETTINGS)
    assert state is None
    assert _letters(out)[0].field == "application"


def test_an_observation_from_the_future_does_not_block_later_ones() -> None:
    """One observation a day ahead would make all others 'not newer': it becomes a dead letter."""
    records = _records(4)
    observation = Observation.model_validate_json(records[1].value or b"")
    ahead = observation.model_copy(update={"observed_at": observation.observed_at + timedelta(days=1)})
    record = Record(OBSERVATIONS.name, 3, 1, "shop/orders", ahead.model_dump_json().encode(), {}, records[1].timestamp)
    _, out = process("shop/orders", None, [records[0], record, records[2], records[3]], SETTINGS)
    assert len(_analyses(out)) == 3
    assert _letters(out)[0].field == "observed_at"


def test_a_bug_met_by_one_application_stays_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """An exception inside the core is this observation's dead letter; the state before it is kept."""
    records = _records(3)
    real = processing.advance

    def fails_once(memory, observation, settings, *, lost_records=None):  # type: ignore[no-untyped-def]
        if observation.observed_at == Observation.model_validate_json(records[1].value or b"").observed_at:
            raise ZeroDivisionError("division by zero")
        return real(memory, observation, settings, lost_records=lost_records)

    monkeypatch.setattr(processing, "advance", fails_once)
    state, out = process("shop/orders", None, records, SETTINGS)
    assert len(_analyses(out)) == 2
    assert "ZeroDivisionError" in _letters(out)[0].reason
    assert state is not None


def test_a_damaged_state_starts_empty() -> None:
    """No analysis uses a partial state; its bytes go to the dead-letter topic once, for operators to inspect."""
    state, out = process("shop/orders", StoredState(b"not json"), _records(2), SETTINGS)
    assert len(_analyses(out)) == 2
    (letter,) = _letters(out)
    assert letter.reason.startswith("the application's earlier state is discarded and learned again: the state")
    assert (letter.key, letter.field, letter.offset) == ("shop/orders", "state", 0)
    assert base64.b64decode(letter.value_base64 or "") == b"not json"
    assert _letters(process("shop/orders", state, _records(3)[2:], SETTINGS)[1]) == []


def test_a_damaged_state_and_a_damaged_record_are_two_letters() -> None:
    """Both are of the same place, and neither hides the other; the damaged state is deleted."""
    bad = Record(OBSERVATIONS.name, 3, 0, "shop/orders", b"{", {}, None)
    state, out = process("shop/orders", StoredState(b"not json"), [bad], SETTINGS)
    letters = _letters(out)
    assert state is None
    assert [letter.offset for letter in letters] == [0, 0]
    assert len({letter.id for letter in letters}) == 2


def test_an_ended_application_has_no_state() -> None:
    """The state is removed with the policy; later observations start an empty one."""
    job = Job()
    job.run_for(2)
    state, _ = process("shop/orders", None, [_record(job.observe(), 0)], SETTINGS)
    job.run_for(2)
    state, out = process("shop/orders", state, [_record(job.observe(status="ended", run=None), 1)], SETTINGS)
    assert state is None
    assert _analyses(out)[0].status == "ended"


def test_a_retention_gap_is_counted_once() -> None:
    """Offsets 4 to 10 were deleted: the first observation behind them reports it, and only that one."""
    job = Job()
    records = []
    for offset in (0, 1, 2, 3, 10, 11):
        job.run_for(14 if offset == 10 else 2)
        records.append(_record(job.observe(), offset))
    lost = {3: Lost(first=4, kept=10)}
    state, _ = process("shop/orders", None, records[:4], SETTINGS)
    state, out = process("shop/orders", state, records[4:], SETTINGS, lost)
    first, second = _analyses(out)
    assert first.has("retention-gap")
    assert first.dropped_observations == 6
    assert not second.has("retention-gap")
    job.run_for(2)
    _, out = process("shop/orders", state, [_record(job.observe(), 12)], SETTINGS, lost)
    assert not _analyses(out)[0].has("retention-gap")


def test_a_gap_of_another_partition_or_before_the_first_observation_is_ignored() -> None:
    """Neither a partition the application does not live in nor one it is first seen behind."""
    records = _records(2)
    state, _ = process("shop/orders", None, records[:1], SETTINGS)
    _, out = process("shop/orders", state, records[1:], SETTINGS, {2: Lost(0, 1)})
    assert not _analyses(out)[0].has("retention-gap")
    _, out = process("shop/orders", None, records, SETTINGS, {3: Lost(0, 1)})
    assert not any(a.has("retention-gap") for a in _analyses(out))


def test_a_seed_is_read_from_the_latest_analysis_or_not_at_all() -> None:
    """Tombstones, rubbish and ended applications seed nothing."""
    _, out = process("shop/orders", None, _records(2), SETTINGS)
    state = seeded(out[-1].value)
    assert state is not None
    _, again = process("shop/orders", state, _records(2), SETTINGS)
    assert _analyses(again) == []
    assert seeded(None) is None
    assert seeded(b"{}") is None
