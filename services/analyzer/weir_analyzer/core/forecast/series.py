"""Arrivals of one source over time: records in, minutes out, and the forecast at any instant between two minutes.

Model and outlook are kept as text: 32-bit floats in base64, and the profiles as they are. A string costs the state's
JSON next to nothing, and the model is read at the end of a minute only.
"""

from base64 import b64decode, b64encode
from collections.abc import Sequence
from functools import lru_cache
from math import floor, isnan, nan
from struct import pack, unpack
from typing import Any, NamedTuple

from weir_contracts import MAX_NUMBER

from .band import Band, PeakErrors
from .methods import JUDGED_LEADS, METHODS, Errors, Levels
from .model import SHIFTS, Flow, Horizon, Minute, Model, Outlook

MINUTE_SECONDS = 60.0
_KNOWN_SECONDS = 30.0
"""A minute's rate is known if at least this much of it was observed."""
_MAX_MINUTES_AT_ONCE = 60
"""Longest time, in minutes, over which the records between two observations are spread."""


class SeriesState(NamedTuple):
    """A source's arrivals: the present minute, the forecast at the end of the last one, and the model."""

    minute: int
    """The present minute, since the epoch."""
    records: float = 0.0
    seconds: float = 0.0
    """What was observed of the present minute: records, and for how long."""
    made_at: int = 0
    """Minute at whose beginning the forecast was made; 0: there is none yet."""
    outlook: str = ""
    """The forecast, as `outlook_to_text` writes it."""
    text: tuple[str, ...] = ()
    """The model, as `to_text` writes it. Empty before the first whole minute."""

    @classmethod
    def seeded(cls, learned: Sequence[Any]) -> "SeriesState":
        """Return a series that goes on from what `learned` returned. Raises `ValueError` if it is unreadable."""
        minute, *text = learned
        model = from_text(int(minute), [str(part) for part in text])
        outlook = outlook_to_text(model.look_ahead(keep=False))
        return cls(model.minute, made_at=model.minute, outlook=outlook, text=tuple(to_text(model)))

    def learned(self) -> list[Any] | None:
        """Return what re-seeds a lost series. None in the first minutes, which are soon learned again."""
        return [self.made_at, *self.text] if self.text and self.text[1] else None

    def to_json(self) -> list[Any]:
        """Return the state as nested lists of numbers and strings."""
        return [*self]  # a named tuple takes several times as long to write

    @classmethod
    def from_json(cls, stored: list[Any]) -> "SeriesState":
        """Read what `to_json` wrote."""
        minute, records, seconds, made_at, outlook, text = stored
        return cls(minute, records, seconds, made_at, outlook, tuple(text))


def observed(
    state: SeriesState | None, start: float, end: float, records: float | None, own_minutes: int
) -> SeriesState:
    """Take in the records that arrived from `start` to `end`, in seconds since the epoch. None: unknown.

    Records are spread evenly over the interval, so that intervals need not fit minutes. `own_minutes` is the
    application's own horizon.
    """
    present = floor(end / MINUTE_SECONDS)
    if state is None:
        state = SeriesState(present if records is None else floor(start / MINUTE_SECONDS))
    if records is None or not 0 <= records <= MAX_NUMBER * (end - start) or not end > start:
        records = None
    if present == state.minute:
        if records is None:
            return state
        share = min(1.0, (end - MINUTE_SECONDS * present) / (end - start))
        records, seconds = state.records + share * records, state.seconds + share * (end - start)
        return SeriesState(present, records, seconds, state.made_at, state.outlook, state.text)
    if records is None or end - start > MINUTE_SECONDS * _MAX_MINUTES_AT_ONCE:
        return _closed(state, [_minute(state)], SeriesState(present), own_minutes)
    rate = records / (end - start)
    first = MINUTE_SECONDS * (state.minute + 1)
    before = max(0.0, first - max(start, MINUTE_SECONDS * state.minute))
    last = state._replace(records=state.records + rate * before, seconds=state.seconds + before)
    whole = range(max(state.minute + 1, -floor(-start / MINUTE_SECONDS)), present)
    inside = end - max(start, MINUTE_SECONDS * present)
    following = SeriesState(present, rate * inside, inside)
    return _closed(state, [_minute(last), *[Minute(number, rate) for number in whole]], following, own_minutes)


def _minute(state: SeriesState) -> Minute:
    return Minute(state.minute, state.records / state.seconds if state.seconds >= _KNOWN_SECONDS else None)


def _model(state: SeriesState) -> Model | None:
    try:
        return from_text(state.made_at, state.text) if state.text else None
    except ValueError:  # damaged: it is learned again
        return None


def _closed(before: SeriesState, minutes: list[Minute], following: SeriesState, own_minutes: int) -> SeriesState:
    """Return the following state with the model after these minutes."""
    model, outlook = _model(before), None
    for number, rate in minutes:
        if model is None:
            if rate is None:
                continue
            model = Model.start(number, rate)
        elif number < model.minute:
            continue
        model.follow(own_minutes)
        model.take(number, rate)
        outlook = model.look_ahead()
    if model is None or outlook is None:
        return following._replace(made_at=before.made_at, outlook=before.outlook, text=before.text)
    text = tuple(to_text(model))
    return following._replace(made_at=model.minute, outlook=outlook_to_text(outlook), text=text)


_MAX_BYTES = 16_384
_MAX_EXACT = 10_000_000
"""Counts above it are not exact as 32-bit floats."""


def to_text(model: Model) -> list[str]:
    """Return numbers and profiles. Minutes are relative to the model's own."""
    levels, flow = model.levels, model.flow
    numbers: list[float] = [levels.last, *levels.smoothed, levels.level, levels.slope, model.usual, model.high]
    numbers += model.shift_errors
    numbers += [flow.recent, flow.usual, flow.lowest, flow.missing_minutes, flow.expected, flow.held_back]
    for rates in (model.rates, model.five):
        numbers.append(len(rates))
        numbers += [nan if rate is None else rate for rate in rates]
    for errors in model.errors:
        numbers += [errors.judged, *errors.errors, len(errors.pending)]
        for due, *expected in errors.pending:
            numbers += [due - model.minute, *expected]
    numbers.append(len(model.bands))
    for band in model.bands:
        numbers += [band.minutes, _out(band.coverage), min(band.judged, _MAX_EXACT)]
        for kind in (band.quiet, band.high):
            numbers += [kind.middle, _out(kind.bound), kind.spread, len(kind.first), *kind.first]
        numbers.append(len(band.pending))
        for due, peak, unit, bound in band.pending:
            numbers += (due - model.minute, peak, unit, nan if bound is None else bound)
    return [_packed(numbers), model.daily, model.weekly, model.latest]


def outlook_to_text(outlook: Outlook) -> str:
    """Return the outlook's numbers."""
    *first, path, gains, horizons = outlook
    numbers = [*first, len(path), *path, *gains]
    for minutes, point, middle, bound, coverage, judged in horizons:
        numbers += [minutes, point, middle, _out(bound), _out(coverage), min(judged, _MAX_EXACT)]
    return _packed(numbers)


@lru_cache(maxsize=4096)  # each observation of a minute reads the same
def outlook_from_text(text: str) -> Outlook:
    """Return the outlook. Raises `ValueError` for anything that `outlook_to_text` did not write."""
    try:
        last, disturbed, lowest, usual, method, count, *others = _unpacked(text)
        points = int(count)
        horizons = []
        for i in range(2 * points, len(others), 6):
            minutes, point, middle, bound, coverage, judged = others[i : i + 6]
            share = None if isnan(coverage) else round(coverage, 4)
            horizons.append(Horizon(int(minutes), int(point), middle, _in(bound), share, int(judged)))
        path, gains = tuple(others[:points]), tuple(others[points : 2 * points])
        return Outlook(last, disturbed != 0, lowest, usual, int(method), path, gains, tuple(horizons))
    except OverflowError as error:
        raise ValueError(f"the outlook's numbers are damaged: {error}") from None


def from_text(minute: int, text: Sequence[str]) -> Model:
    """Return the model that is to take in `minute` next. Raises `ValueError` for anything that `to_text` did not
    write."""
    packed, daily, weekly, latest = text
    reader = _Reader(_unpacked(packed))
    try:
        last, half, fifth, level, slope, usual, high = reader.some(7)
        shift_errors = reader.some(len(SHIFTS))
        recent, usual_flow, lowest = reader.some(3)
        flow = Flow(recent, usual_flow, lowest, reader.count(), *reader.some(2))
        rates = [None if isnan(rate) else rate for rate in reader.sequence()]
        five = reader.sequence()
        errors = [_errors(lead, minute, reader) for lead in JUDGED_LEADS]
        bands = [_band(minute, reader) for _ in range(reader.count())]
    except (IndexError, OverflowError) as error:
        raise ValueError(f"the forecast's numbers are incomplete: {error!r}") from None
    levels = Levels(last, [half, fifth], level, slope)
    return Model(minute, levels, flow, usual, rates, five, daily, weekly, latest, shift_errors, high, errors, bands)


class _Reader:
    """Numbers in the order in which they were written. Raises `IndexError` or `ValueError` where one is missing."""

    def __init__(self, numbers: tuple[float, ...]) -> None:
        self._numbers = [*numbers]
        self._next = 0

    def count(self) -> int:
        """Return the next number, an integer."""
        number = self._numbers[self._next]
        self._next += 1
        return int(number)

    def some(self, count: int) -> list[float]:
        """Return the next numbers."""
        start, self._next = self._next, self._next + count
        numbers = self._numbers[start : self._next]
        if len(numbers) != count:
            raise IndexError(f"{count} numbers at {start} of {len(self._numbers)}")
        return numbers

    def sequence(self) -> list[float]:
        """Return numbers that are preceded by their count."""
        return self.some(self.count())


def _errors(lead: int, minute: int, reader: _Reader) -> Errors:
    judged, *errors, count = reader.some(2 + len(METHODS))
    pending = [reader.some(1 + len(METHODS)) for _ in range(int(count))]
    for forecast in pending:
        forecast[0] = minute + int(forecast[0])
    return Errors(lead, judged, errors, pending)


def _band(minute: int, reader: _Reader) -> Band:
    minutes, coverage, judged = reader.some(3)
    quiet, high = _peak_errors(reader), _peak_errors(reader)
    waiting = iter(reader.some(4 * reader.count()))
    pending = [
        (minute + int(due), expected, unit, None if isnan(issued) else issued)
        for due, expected, unit, issued in zip(waiting, waiting, waiting, waiting, strict=True)
    ]
    return Band(int(minutes), quiet, high, _in(coverage), int(judged), pending)


def _peak_errors(reader: _Reader) -> PeakErrors:
    middle, bound, spread = reader.some(3)
    return PeakErrors(middle, _in(bound), spread, reader.sequence())


def _packed(numbers: Sequence[float]) -> str:
    return b64encode(pack(f"<{len(numbers)}f", *numbers)).decode()


def _unpacked(text: str) -> tuple[float, ...]:
    content = b64decode(text, validate=True)
    if len(content) % 4 or len(content) > _MAX_BYTES:
        raise ValueError("the forecast's numbers are damaged")
    return unpack(f"<{len(content) // 4}f", content)


def _out(value: float | None) -> float:
    return nan if value is None else value


def _in(value: float) -> float | None:
    return None if isnan(value) else value
