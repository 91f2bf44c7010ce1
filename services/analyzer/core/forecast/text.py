"""A model and its outlook as text: 32-bit floats in base64, and the profiles as they are.

A string costs the state's JSON next to nothing, and the model is read at the end of a minute only.
"""

from base64 import b64decode, b64encode
from collections.abc import Sequence
from functools import lru_cache
from math import isnan, nan
from struct import pack, unpack

from .band import Band, PeakErrors
from .flow import Flow
from .methods import JUDGED_LEADS, METHODS, Errors, Levels
from .model import SHIFTS, Horizon, Model, Outlook

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
        return _model(minute, reader, daily, weekly, latest)
    except (IndexError, OverflowError) as error:
        raise ValueError(f"the forecast's numbers are incomplete: {error!r}") from None


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
        found = self._numbers[start : self._next]
        if len(found) != count:
            raise IndexError(f"{count} numbers at {start} of {len(self._numbers)}")
        return found

    def sequence(self) -> list[float]:
        """Return numbers that are preceded by their count."""
        return self.some(self.count())


def _model(minute: int, reader: _Reader, daily: str, weekly: str, latest: str) -> Model:
    last, half, fifth, level, slope, usual, high = reader.some(7)
    shift_errors = reader.some(len(SHIFTS))
    recent, usual_flow, lowest = reader.some(3)
    flow = Flow(recent, usual_flow, lowest, reader.count(), *reader.some(2))
    rates = [None if isnan(rate) else rate for rate in reader.sequence()]
    five = reader.sequence()
    levels = Levels(last, [half, fifth], level, slope)
    errors = [_errors(lead, minute, reader) for lead in JUDGED_LEADS]
    bands = [_band(minute, reader) for _ in range(reader.count())]
    profiles = daily, weekly, latest
    return Model(minute, levels, flow, usual, rates, five, *profiles, shift_errors, high, errors, bands)


def _errors(lead: int, minute: int, reader: _Reader) -> Errors:
    judged, *errors, count = reader.some(2 + len(METHODS))
    pending = [reader.some(1 + len(METHODS)) for _ in range(int(count))]
    for each in pending:
        each[0] = minute + int(each[0])
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
