"""One application's records of a batch: bytes in, bytes out, around the pure `advance`.

Spark's Python workers and the in-memory adapter use it alike. A failure of one application never
leaves here as an exception: it becomes that application's dead letter.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from uuid import uuid5

from pydantic import ValidationError

from weir_analyzer.core import AnalysisSettings, AnalyzerState, UnreadableState, advance, seed
from weir_contracts import Analysis, DeadLetter, Observation
from weir_contracts.document import read_json
from weir_contracts.topics import ANALYSES, DEAD_LETTERS
from weir_runtime.bus import Outgoing, Record
from weir_runtime.messages import Undecodable, child_traceparent, decode, encode, excess_of
from weir_runtime.reading import LetterRate, dead_letter, value_fields

SERVICE = "analyzer"
_CLOCKS_APART = timedelta(minutes=5)
"""An observation from further in the future than this would block all later ones: its monitor's clock is wrong."""


@dataclass(frozen=True, slots=True)
class StoredState:
    """An application's entry in the state store: the analyzer state, and the last record that went into it."""

    state: bytes
    partition: int = -1
    offset: int = -1


@dataclass(frozen=True, slots=True)
class Lost:
    """Records of a partition that retention deleted before they were read: `first` up to, not including, `kept`."""

    first: int
    kept: int


def process(
    key: str,
    stored: StoredState | None,
    records: Sequence[Record],
    settings: AnalysisSettings,
    lost: Mapping[int, Lost] | None = None,
    *,
    rate: LetterRate | None = None,
) -> tuple[StoredState | None, list[Outgoing]]:
    """Advance one application by its records of a batch, in the order of (observed_at, offset).

    Returns the new state (None: remove it) and the records to publish, in order. `lost` holds by partition the records
    deleted unread: the first record behind such a gap carries it into its analysis. A damaged state becomes a dead
    letter of the first record. `rate` limits the dead letters of unreadable records; None: no limit.
    """
    state: AnalyzerState | None = None
    partition, offset = -1, -1
    out: list[Outgoing] = []
    if stored is not None:
        partition, offset = stored.partition, stored.offset
        try:
            state = AnalyzerState.from_bytes(stored.state)
        except UnreadableState as error:
            # only damage comes here: another version has another checkpoint directory, seeded from the analyses
            out += [_damaged(stored, str(error), record) for record in records[:1]]
    readable: list[tuple[datetime, int, Observation, Record]] = []
    for record in records:
        try:
            observation = _read(key, record)
        except Undecodable as error:
            out += _dead_letters(error, rate)
        else:
            readable.append((observation.observed_at, record.offset, observation, record))
    readable.sort(key=lambda entry: entry[:2])
    for _, _, observation, record in readable:
        gap = _gap(lost, partition, offset, record)
        try:
            state, analysis = advance(state, observation, settings, lost_records=gap)
            if analysis is not None:
                out.append(_published(analysis, record))
        except Exception as error:  # noqa: BLE001 - any error is this application's alone
            failed = f"the analysis failed: {type(error).__name__}: {error}"
            out += _dead_letters(Undecodable(record, failed, code="analysis-failed"), rate)
        partition, offset = record.partition, max(offset, record.offset)
    return (None if state is None else StoredState(state.to_bytes(), partition, offset)), out


def _gap(lost: Mapping[int, Lost] | None, partition: int, offset: int, record: Record) -> int | None:
    gap = None if lost is None else lost.get(record.partition)
    if gap is None or partition != record.partition or offset >= gap.kept or record.offset < gap.kept:
        return None
    missing = gap.kept - max(gap.first, offset + 1)
    return missing if missing > 0 else None


def seeded(value: bytes | None) -> StoredState | None:
    """Return the state after the analysis in `value`; None if it holds none."""
    if value is None or excess_of(value):
        return None
    try:
        state = seed(read_json(Analysis, value))
    except ValidationError:
        return None
    return None if state is None else StoredState(state.to_bytes())


def _read(key: str, record: Record) -> Observation:
    observation = decode(record, Observation).message
    if observation.application != key:
        raise Undecodable(
            record, f"{observation.application!r} came under the key {key!r}", "application", code="wrong-key"
        )
    if record.timestamp is not None and observation.observed_at > record.timestamp + _CLOCKS_APART:
        ahead = (observation.observed_at - record.timestamp).total_seconds()
        raise Undecodable(
            record, f"is {ahead:,.0f} s ahead of the broker's timestamp", "observed_at", code="ahead-of-time"
        )
    return observation


def _published(analysis: Analysis, record: Record) -> Outgoing:
    body, headers = encode(
        analysis,
        type=ANALYSES.type,
        source=SERVICE,
        id=analysis.id,
        time=analysis.observed_at,
        traceparent=child_traceparent(record.headers.get("traceparent"), analysis.id),
    )
    return Outgoing(ANALYSES.name, analysis.application, body, headers)


def _dead_letters(error: Undecodable, rate: LetterRate | None) -> list[Outgoing]:
    """Return the dead letter of a record, unless there are too many. At every replay it has the same id and time, which is
    the record's."""
    record = error.record
    if rate is not None and not rate.admits(record):
        return []
    suppressed = 0 if rate is None else rate.take(record)
    return [_outgoing(record, dead_letter(SERVICE, _time_of(record), error, suppressed))]


def _damaged(stored: StoredState, damage: str, record: Record) -> Outgoing:
    reason = f"the application's earlier state is discarded and learned again: {damage}"
    letter = dead_letter(SERVICE, _time_of(record), Undecodable(record, reason, "state", code="damaged-state"))
    own_id = uuid5(letter.id, "state")
    return _outgoing(record, letter.model_copy(update={"id": own_id, **value_fields(stored.state)}))


def _time_of(record: Record) -> datetime:
    return record.timestamp or datetime.fromtimestamp(0, UTC)


def _outgoing(record: Record, letter: DeadLetter) -> Outgoing:
    body, headers = encode(letter, type=DEAD_LETTERS.type, source=SERVICE, id=letter.id, time=letter.at)
    return Outgoing(DEAD_LETTERS.name, letter.key or "unknown", body, headers)
