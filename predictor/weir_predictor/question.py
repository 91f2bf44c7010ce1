"""The load and the parallelism of a what-if, as users write them."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from weir_contracts import Parallelism, parse_duration

from .model import MIN_RATE

MAX_FACTOR = 1000.0
MAX_RATE = 1e9
MAX_PARALLELISM = 32_768
_NUMBER = r"[0-9]{1,9}(?:\.[0-9]{1,9})?"
_FACTOR = re.compile(rf"[x×]({_NUMBER})|({_NUMBER})[x×]")
_PART = re.compile(r"[^=]+=[0-9]{1,6}\s*")
_RATE = re.compile(r"([0-9]{1,12}(?:\.[0-9]{1,9})?)/s")


class InvalidQuestion(ValueError):
    """A what-if that cannot be answered; `field` says which part of it is wrong."""

    def __init__(self, field: str, sentence: str) -> None:
        self.field = field
        super().__init__(sentence)


@dataclass(frozen=True)
class Load:
    """A factor of the arrivals, or records/s at all sources together."""

    factor: float | None = None
    records_per_second: float | None = None
    is_forecast: bool = False
    """Whether the factor is of the forecast; else of the present arrivals."""

    def on(self, arrivals: Mapping[str, float]) -> dict[str, float]:
        """Return records/s at each source under this load, in the present proportions. Raises `InvalidQuestion` if
        nothing arrives now."""
        total = sum(arrivals.values())
        if self.records_per_second is None:
            factor = 1.0 if self.factor is None else self.factor
            return {source: rate * factor for source, rate in arrivals.items()}
        if len(arrivals) == 1:
            return dict.fromkeys(arrivals, self.records_per_second)
        if total <= MIN_RATE:
            raise InvalidQuestion("load", "nothing arrives now, so it is unknown how a rate is shared by the sources")
        return {source: rate / total * self.records_per_second for source, rate in arrivals.items()}


def parse_load(text: str) -> Load:
    """Return a load: `x2` or `2x` is twice the present one, `1200/s` records per second, `forecast` what is to come. Raises
    `InvalidQuestion`."""
    if text == "forecast":
        return Load(factor=1.0, is_forecast=True)
    if match := _FACTOR.fullmatch(text):
        factor = float(match[1] or match[2])
        if 0 < factor <= MAX_FACTOR:
            return Load(factor=factor)
    elif match := _RATE.fullmatch(text):
        rate = float(match[1])
        if 0 < rate <= MAX_RATE:
            return Load(records_per_second=rate)
    raise InvalidQuestion(
        "load",
        f"{text[:40]!r} is no load: write x2 for twice the present one (up to x1000), 1200/s for records/s, or forecast",
    )


def parse_at(text: str) -> float:
    """Return the seconds of `now`, `in 2h` or `2h`. Raises `InvalidQuestion`."""
    if text == "now":
        return 0.0
    try:
        return parse_duration(text.removeprefix("in ")).total_seconds()
    except ValueError as error:
        raise InvalidQuestion("at", f"{text[:40]!r} is no time from now: write 2h, or now ({error})") from None


def parse_parallelism(texts: Sequence[str]) -> Parallelism:
    """Return the parallelism of texts such as `enrich=6` or `parse=2,enrich=6`; names may contain `=`, and commas in
    brackets. Raises `InvalidQuestion`."""
    found: Parallelism = {}
    for text in (part for each in texts for part in _parts(each)):
        name, equals, number = text.rpartition("=")
        if not equals or not name or not re.fullmatch(r"[0-9]{1,6}", number):
            raise InvalidQuestion("parallelism", f"{text[:100]!r} is no operator=number")
        if not 1 <= int(number) <= MAX_PARALLELISM:
            raise InvalidQuestion("parallelism", f"{name[:100]}: must lie between 1 and {MAX_PARALLELISM}")
        if name in found:
            raise InvalidQuestion("parallelism", f"{name[:100]} is named twice")
        found[name] = int(number)
    return found


def _parts(text: str) -> list[str]:
    """Return the texts between commas, if each names an operator and its parallelism; else the text is one name."""
    parts = text.split(",")
    if all(_PART.fullmatch(each) and each.count("(") == each.count(")") for each in parts):
        return [each.strip() for each in parts]
    return [text]
