"""Each sentence that a service can write about a plan or an action fits a line of 160 characters."""

import inspect
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from types import ModuleType
from typing import Any, get_type_hints

import pytest

from weir_contracts import MAX_SENTENCE
from weir_planner.core import messages as of_plans

NAME = "enrich-with-customer"
OTHERS = {"orders": 120, "parse-json-payload": 1200, NAME: 400, "total-by-country-day": 12}
VALUES: dict[str, Any] = {
    "str": NAME,
    "int": 123_456,
    "float": 1_234_567.8,
    "bool": True,
    "timedelta": timedelta(hours=3),
    "datetime": datetime(2026, 1, 1, 12, tzinfo=UTC),
}


def value_for(hint: Any) -> Any:
    """Return a value of a parameter's type: names of 20 characters, large numbers, four operators."""
    text = str(hint)
    if "tuple[int, float]" in text and "Mapping" not in text:
        return (400, 1_234_567.8)
    if "tuple[float, float]" in text:
        return dict.fromkeys(OTHERS, (1_234.5, 1_234_567.8))
    if any(kind in text for kind in ("Sequence[str]", "list[str]", "Iterable[str]")):
        return list(OTHERS)
    if "Mapping[str, str]" in text:
        return dict.fromkeys(OTHERS, NAME)
    if "dict[" in text or "Mapping[" in text:
        return OTHERS
    return next(value for name, value in VALUES.items() if name in text)


def sentences_of(module: ModuleType) -> Iterator[tuple[str, Callable[..., str]]]:
    for name, function in inspect.getmembers(module, inspect.isfunction):
        if function.__module__ == module.__name__ and get_type_hints(function).get("return") is str:
            yield name, function


ALL = [pytest.param(function, id=name) for name, function in sentences_of(of_plans)]


@pytest.mark.parametrize("function", ALL)
def test_a_sentence_fits_a_line(function: Callable[..., str]) -> None:
    """With names and reasons of 20 characters, numbers of seven digits and a change of four operators."""
    hints = get_type_hints(function)
    given = {name: value_for(hints[name]) for name in inspect.signature(function).parameters}
    text = function(**given)
    assert len(text) <= MAX_SENTENCE, text


def test_all_services_have_sentences() -> None:
    """The list above is not empty by accident."""
    assert len(ALL) > 55
