"""A model as text: its numbers as 32-bit floats in base64, and its profiles.

Between two minutes it is not read, and a string costs the state's JSON next to nothing.
"""

from base64 import b64decode, b64encode
from collections.abc import Iterator, Sequence
from math import isnan, nan
from struct import pack, unpack

from .band import Band, PendingPeak
from .flow import Flow
from .methods import METHODS, Levels
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
    reader = _Reader(iter(unpack(f"<{len(content) // 4}f", content)))
    try:
        return _model(minute, reader, daily, weekly)
    except (StopIteration, OverflowError) as error:
        raise ValueError(f"the forecast's numbers are incomplete: {error!r}") from None


class _Reader:
    """Numbers in the order in which they were written."""

    def __init__(self, numbers: Iterator[float]) -> None:
        self._numbers = numbers

    def count(self) -> int:
        """Return the next number, a whole one."""
        return int(next(self._numbers))

    def some(self, count: int) -> list[float]:
        """Return the next numbers."""
        return [next(self._numbers) for _ in range(count)]

    def sequence(self) -> list[float]:
        """Return numbers that are preceded by their count."""
        return self.some(self.count())


def _model(minute: int, reader: _Reader, daily: str, weekly: str) -> Model:
    last, half, fifth, level, slope, usual = reader.some(6)
    recent, usual_flow, lowest = reader.some(3)
    missing = reader.count()
    flow = Flow(recent, usual_flow, lowest, missing, *reader.some(2))
    rates = [_in(rate) for rate in reader.sequence()]
    model = Model(minute, Levels(last, [half, fifth], level, slope), flow, usual, rates)
    model.five, model.thirty, model.daily, model.weekly = reader.sequence(), reader.sequence(), daily, weekly
    for errors in model.errors:
        errors.judged, errors.errors = reader.count(), reader.some(len(METHODS))
        for _ in range(reader.count()):
            errors.pending.append([minute + reader.count(), *reader.some(len(METHODS))])
    model.bands = [_band(minute, reader) for _ in range(reader.count())]
    return model


def _band(minute: int, reader: _Reader) -> Band:
    minutes = reader.count()
    middle, bound, spread, coverage = reader.some(4)
    band = Band(minutes, middle, _in(bound), spread, _in(coverage), reader.count(), reader.sequence())
    for _ in range(reader.count()):
        due = minute + reader.count()
        expected, unit, issued = reader.some(3)
        band.pending.append(PendingPeak(due, expected, unit, _in(issued)))
    return band


def _out(value: float | None) -> float:
    return nan if value is None else value


def _in(value: float) -> float | None:
    return None if isnan(value) else value
