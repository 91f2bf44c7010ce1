"""A model as text: its numbers as 32-bit floats in base64, and its profiles.

Between two minutes it is not read, and a string costs the state's JSON next to nothing.
"""

from base64 import b64decode, b64encode
from collections.abc import Sequence
from math import isnan, nan
from struct import pack, unpack

from .band import Band, PendingPeak
from .flow import Flow
from .methods import JUDGED_LEADS, METHODS, Errors, Levels
from .model import Model

_MAX_BYTES = 16_384


def to_text(model: Model) -> list[str]:
    """Return numbers, daily profile and weekly profile. Minutes are relative to the model's own."""
    levels, flow = model.levels, model.flow
    numbers: list[float] = [levels.last, *levels.smoothed, levels.level, levels.slope, model.usual]
    numbers += [flow.recent, flow.usual, flow.lowest, flow.missing_minutes, flow.expected, flow.held_back]
    for rates in (model.rates, model.five, model.thirty):
        numbers += [len(rates), *[nan if rate is None else rate for rate in rates]]
    for errors in model.errors:
        numbers += [min(errors.judged, 1_000_000), *errors.errors, len(errors.pending)]
        for due, *expected in errors.pending:
            numbers += [due - model.minute, *expected]
    numbers.append(len(model.bands))
    for band in model.bands:
        numbers += [band.minutes, band.middle, _out(band.bound), band.spread, _out(band.coverage)]
        numbers += [min(band.judged, 1_000_000), len(band.first), *band.first, len(band.pending)]
        for peak in band.pending:
            numbers += [peak.due - model.minute, peak.expected, peak.unit, _out(peak.bound)]
    return [b64encode(pack(f"<{len(numbers)}f", *numbers)).decode(), model.daily, model.weekly]


def from_text(minute: int, text: Sequence[str]) -> Model:
    """Return the model that is to take in `minute` next. Raises `ValueError` for anything that `to_text` did not
    write."""
    packed, daily, weekly = text
    content = b64decode(packed, validate=True)
    if len(content) % 4 or len(content) > _MAX_BYTES:
        raise ValueError("the forecast's numbers are damaged")
    reader = _Reader(unpack(f"<{len(content) // 4}f", content))
    try:
        return _model(minute, reader, daily, weekly)
    except (IndexError, OverflowError) as error:
        raise ValueError(f"the forecast's numbers are incomplete: {error!r}") from None


class _Reader:
    """Numbers in the order in which they were written. Raises `IndexError` or `ValueError` where one is missing."""

    def __init__(self, numbers: tuple[float, ...]) -> None:
        self._numbers = numbers
        self._next = 0

    def count(self) -> int:
        """Return the next number, a whole one."""
        number = self._numbers[self._next]
        self._next += 1
        return int(number)

    def some(self, count: int) -> list[float]:
        """Return the next numbers."""
        end = self._next + count
        if not self._next <= end <= len(self._numbers):
            raise IndexError(f"{count} numbers at {self._next} of {len(self._numbers)}")
        found = list(self._numbers[self._next : end])
        self._next = end
        return found

    def sequence(self) -> list[float]:
        """Return numbers that are preceded by their count."""
        return self.some(self.count())


def _model(minute: int, reader: _Reader, daily: str, weekly: str) -> Model:
    last, half, fifth, level, slope, usual, recent, usual_flow, lowest = reader.some(9)
    flow = Flow(recent, usual_flow, lowest, reader.count(), *reader.some(2))
    rates = [None if isnan(rate) else rate for rate in reader.sequence()]
    five, thirty = reader.sequence(), reader.sequence()
    levels = Levels(last, [half, fifth], level, slope)
    errors = [_errors(lead, minute, reader) for lead in JUDGED_LEADS]
    bands = [_band(minute, reader) for _ in range(reader.count())]
    return Model(minute, levels, flow, usual, rates, five, thirty, daily, weekly, errors, bands)


def _errors(lead: int, minute: int, reader: _Reader) -> Errors:
    found = Errors(lead, reader.count(), reader.some(len(METHODS)))
    width = 1 + len(METHODS)
    numbers = reader.some(width * reader.count())
    for i in range(0, len(numbers), width):
        found.pending.append([minute + int(numbers[i]), *numbers[i + 1 : i + width]])
    return found


def _band(minute: int, reader: _Reader) -> Band:
    minutes, middle, bound, spread, coverage, judged = reader.some(6)
    band = Band(int(minutes), middle, _in(bound), spread, _in(coverage), int(judged), reader.sequence())
    numbers = reader.some(4 * reader.count())
    for i in range(0, len(numbers), 4):
        due, expected, unit, issued = numbers[i : i + 4]
        band.pending.append(PendingPeak(minute + int(due), expected, unit, None if isnan(issued) else issued))
    return band


def _out(value: float | None) -> float:
    return nan if value is None else value


def _in(value: float) -> float | None:
    return None if isnan(value) else value
