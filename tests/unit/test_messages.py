"""Each sentence that a service can write about a plan or an action fits a line of 160 characters and reads well."""

import inspect
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from types import ModuleType
from typing import Any, get_type_hints

import pytest

from tests.sentences import assert_reads_well, faults
from weir_contracts import MAX_SENTENCE
from weir_planner.core import messages as of_plans
from weir_predictor import messages as of_predictions

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


ONE: dict[str, Any] = {**VALUES, "object": NAME, "int": 1, "float": 1.0}
ABOVE_ONE = {"above_total", "above_limit", "needs_more"}
"""Sentences whose number exceeds a limit of one or more."""
REASONS = {"reason", "error", "sentence", "cause", "detail", "evidence", "progress", "refused"}
"""Parameters with a text of another part, which may have parentheses."""


def value_for(hint: Any, values: dict[str, Any] = VALUES) -> Any:
    """Return a value of a parameter's type: names of 20 characters, four operators, and the given numbers."""
    text = str(hint)
    vector = OTHERS if values is VALUES else dict.fromkeys(OTHERS, 1)
    if "tuple[int, float]" in text and "Mapping" not in text:
        return (values["int"], values["float"])
    if text.startswith("tuple[float"):
        return (values["float"], values["float"])
    if "tuple[float, float]" in text:
        return dict.fromkeys(OTHERS, (values["float"], values["float"]))
    if any(kind in text for kind in ("Sequence[str]", "list[str]", "Iterable[str]")):
        return list(OTHERS)
    if "Mapping[str, str]" in text:
        return dict.fromkeys(OTHERS, NAME)
    if "dict[" in text or "Mapping[" in text:
        return vector
    return next(value for name, value in values.items() if name in text)


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


SMALL = [
    pytest.param(function, id=f"{module.__name__.partition('.')[0]}-{name}")
    for module in (of_plans, of_predictions)
    for name, function in sentences_of(module)
    if name not in ABOVE_ONE
    and all(any(kind in str(hint) for kind in (*ONE, "Mapping", "list")) for hint in get_type_hints(function).values())
]


@pytest.mark.parametrize("function", SMALL)
def test_a_sentence_reads_well_with_a_single_one(function: Callable[..., str]) -> None:
    """Of everything there is one, the reasons of other parts have parentheses, and a share is 100 %."""
    hints = get_type_hints(function)
    given = {name: value_for(hints[name], ONE) for name in inspect.signature(function).parameters}
    given |= {name: "the request failed (503)" for name in REASONS & given.keys() if isinstance(given[name], str)}
    assert_reads_well(function(**given))


@pytest.mark.parametrize(
    "wrong",
    [
        "1 slots exceed the 0 of the budget",
        "0% less than a static peak",
        "held (rolled back (too late))",
        "1 pod are ready",
    ],
)
def test_what_reads_wrong_is_found(wrong: str) -> None:
    """The check itself."""
    assert len(faults(wrong)) == 1
