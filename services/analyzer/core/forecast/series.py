"""Arrivals of one source over time: records in, minutes out, and the forecast at any instant between two minutes."""

from collections.abc import Sequence
from math import floor
from typing import Any, NamedTuple

from weir_contracts import MAX_NUMBER

from .model import Minute, Model
from .text import from_text, outlook_to_text, to_text

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
        model = from_text(int(minute), [str(each) for each in text])
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
    return _closed(state, [_minute(last), *[Minute(each, rate) for each in whole]], following, own_minutes)


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
