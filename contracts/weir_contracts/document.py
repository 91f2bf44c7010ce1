"""Documents that people write: the base of a policy's parts, strict reading, and one sentence for whatever is wrong."""

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Self, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic.alias_generators import to_camel

from .base import VERSION

M = TypeVar("M", bound=BaseModel)
Problem = tuple[str, str]
"""The dotted path of a field as the user wrote it, and what is wrong with it."""

MAX_PROBLEMS = 5
"""Problems that one error names; further ones are only counted."""
_MAX_FIELD_CHARACTERS = 200
_MAX_SENTENCE_CHARACTERS = 1000
_SENTENCES = {
    "missing": "is required",
    "model_type": "must be a mapping of fields",
    "model_attributes_type": "must be a mapping of fields",
    "dict_type": "must be a mapping",
    "list_type": "must be a list",
    "string_type": "must be text",
    "tuple_type": "must be a list",
    "int_type": "must be a whole number, without quotes",
    "int_from_float": "must be a whole number",
    "int_parsing": "must be a whole number",
    "float_parsing": "must be a number",
    "float_type": "must be a number, without quotes",
    "bool_type": "must be true or false, without quotes",
}
"""Sentences by pydantic's type of error, where its own speaks of Python; otherwise its own is used."""
_SHOULD = re.compile(r"^(Input|List|String|Dictionary|Tuple|Set) should ")


class Document(BaseModel):
    """Part of a policy document: camelCase outside, frozen inside. Strictness is the border's (`parse_policy`)."""

    model_config = ConfigDict(
        frozen=True,
        extra="ignore",
        allow_inf_nan=False,
        alias_generator=to_camel,
        populate_by_name=True,
        serialize_by_alias=True,
        use_attribute_docstrings=True,
    )


class InvalidDocument(ValueError):
    """A document that cannot be used. `problems` are the first `MAX_PROBLEMS`, `more` counts the others; the text is one line."""

    unknown_field: ClassVar[str] = "is not a field of this version"

    def __init__(self, problems: Sequence[Problem], more: int = 0) -> None:
        first = problems[:MAX_PROBLEMS]
        self.problems = [
            (printable(field, _MAX_FIELD_CHARACTERS), printable(sentence, _MAX_SENTENCE_CHARACTERS))
            for field, sentence in first
        ]
        self.more = more + len(problems) - len(first)
        named = [f"{field}: {sentence}" if field else sentence for field, sentence in self.problems]
        super().__init__("; ".join([*named, f"and {self.more:,} more"] if self.more else named))

    @classmethod
    def of(cls, error: ValidationError | Sequence[Mapping[str, Any]], root: str = "document", *, skip: int = 0) -> Self:
        """The problems that pydantic found. `root` stands for the document itself; `skip` leading parts of each path are left out."""
        found = error.errors(include_url=False, include_input=False) if isinstance(error, ValidationError) else error
        short = {each["loc"] for each in found if each["type"] == "too_short"}
        # pydantic counts only the valid items: a list of one wrong item has "at least 1 item" as a second, false problem.
        false = short and {loc for loc in short if any(e["loc"][: len(loc)] == loc != e["loc"] for e in found)}
        true = [each for each in found if not (each["type"] == "too_short" and each["loc"] in false)]
        first = [
            (
                ".".join(str(part) for part in each["loc"][skip:]) or root,
                cls.unknown_field if each["type"] == "extra_forbidden" else sentence_of(each),
            )
            for each in true[:MAX_PROBLEMS]
        ]
        return cls(first, len(true) - len(first))


def example(contract: str, which: str = "full") -> Any:
    """Return a golden example of a contract: `full` or `minimal`."""
    here = Path(__file__).parent
    folder = next(each for each in (here / "examples", here.parent / "examples") if each.is_dir())
    return json.loads((folder / VERSION / contract / f"{which}.json").read_text())


def sentence_of(error: Mapping[str, Any]) -> str:
    """What is wrong, from one of pydantic's errors."""
    return _SENTENCES.get(error["type"]) or _SHOULD.sub("must ", str(error["msg"]).removeprefix("Value error, "))


def printable(text: str, max_characters: int) -> str:
    """The text on one line: control characters and halves of characters escaped, a longer text cut."""
    cut = text if len(text) <= max_characters else f"{text[:max_characters]}…"
    return "".join(sign if sign.isprintable() else sign.encode("unicode_escape").decode() for sign in cut)


def read_document(
    model: type[M], document: Any, *, root: str, refusal: type[InvalidDocument] = InvalidDocument, by_name: bool = True
) -> M:
    """Read what YAML or JSON text says, strictly: no text or truth value for a number, no unknown field, no name but the aliases
    unless `by_name`. Raises `refusal`. Messages between services are read leniently instead (`model_validate_json`).
    """
    try:
        # As JSON, where a list stands for a tuple and a date is its text.
        text = json.dumps(document, default=str, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise refusal([(root, "holds half of a character (a lone surrogate), which is no text")]) from None
    except (ValueError, TypeError, RecursionError) as error:
        raise refusal([(root, f"holds what JSON cannot say: {str(error)[:200]}")]) from None
    try:
        return model.model_validate_json(text, strict=True, extra="forbid", by_name=by_name, by_alias=True)
    except ValidationError as error:
        raise refusal.of(error, root) from None
