"""Documents that users write: the base of a policy's parts, its metadata, strict reading, and one sentence for all
problems."""

import json
import re
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic.alias_generators import to_camel
from pydantic_core import from_json

from .base import MAX_COUNT, MAX_ORDER, VERSION, Name, Timestamp, bounded

M = TypeVar("M", bound=BaseModel)
Problem = tuple[str, str]
"""Dotted path of a field as the user wrote it, and the reason why it is invalid."""

MAX_PROBLEMS = 5
"""Number of problems that one error names; further ones are counted."""
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
    "int_type": "must be an integer, without quotes",
    "int_from_float": "must be an integer",
    "int_parsing": "must be an integer",
    "float_parsing": "must be a number",
    "float_type": "must be a number, without quotes",
    "bool_type": "must be true or false, without quotes",
    "url_scheme": "must begin with http:// or https://",
}
"""Sentences by pydantic's type of error, where pydantic's own mentions Python types."""
_OF = "must consist of lower-case letters, digits"
_ENDS = "and begin and end with a letter or digit"
PATTERN_SENTENCES = {
    r"^[a-z0-9]([-a-z0-9.]{0,61}[a-z0-9])?$": f"{_OF}, dashes and dots, at most 63, {_ENDS}",
    r"^[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?$": f"{_OF}, dashes and dots, at most 253, {_ENDS}",
    r"^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$": f"{_OF} and dashes, at most 63, {_ENDS}",
    r"^[a-z][a-z0-9_]{0,62}$": f"{_OF} and underscores, at most 63, and begin with a letter",
    r"^[a-zA-Z0-9._-]{1,249}$": "must consist of letters, digits, dots, dashes and underscores, at most 249",
    r"^[A-Z][A-Za-z0-9]{0,62}$": "must be a kind such as Deployment: letters and digits, the first an upper-case letter",
    r"^([a-z0-9][a-z0-9.-]{0,252}/)?v[0-9][a-z0-9]{0,30}$": "must be a group and version such as apps/v1",
    r"^[A-Za-z0-9._:\[\]-]+:[0-9]+(,[A-Za-z0-9._:\[\]-]+:[0-9]+)*$": "must be host:port, several separated by commas without blanks",
    r"^([01][0-9]|2[0-3]):[0-5][0-9]$": "must be a time such as 22:00",
    r"^/[A-Za-z0-9._~/-]{0,200}$": "must be a path such as /metrics",
    r"^[^/\\\s][^/\\\n\r\t]{0,250}\.jar$": "must be the id or name of a jar, without folder, and end with .jar",
    r"^([a-z][a-z0-9+.-]{0,20}:/{1,3}|/)[^\s?#]{1,900}$": "must be a directory such as s3://bucket/savepoints or /savepoints",
    r"^[A-Za-z_$][A-Za-z0-9_$]*(\.[A-Za-z_$][A-Za-z0-9_$]*)*$": "must be a class such as shop.Orders",
    r"^https?://": "must begin with http:// or https://",
}
"""Sentences by the pattern that a text does not match."""
_SHOULD = re.compile(r"^(Input|List|String|Dictionary|Tuple|Set) should ")


class Document(BaseModel):
    """Base of the parts of a user's document: frozen, camelCase in JSON. `read_document` reads it strictly."""

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
    """Error of an invalid document, on one line: the first `MAX_PROBLEMS` in `problems`, the number of others in
    `more`."""

    unknown_field: ClassVar[str] = "is not a field of this version"

    def __init__(self, problems: Sequence[Problem], more: int = 0) -> None:
        first = problems[:MAX_PROBLEMS]
        self.problems = [
            (printable(field, _MAX_FIELD_CHARACTERS), printable(sentence, _MAX_SENTENCE_CHARACTERS))
            for field, sentence in first
        ]
        self.more = more + len(problems) - len(first)
        listed = [f"{field}: {sentence}" if field else sentence for field, sentence in self.problems]
        super().__init__("; ".join([*listed, f"and {self.more:,} more"] if self.more else listed))

    @classmethod
    def of(
        cls,
        error: ValidationError | Sequence[Mapping[str, Any]],
        root: str = "document",
        *,
        skip: int = 0,
        model: type[BaseModel] | None = None,
    ) -> Self:
        """Return the error for pydantic's problems.

        `root` is the name of the document itself; the first `skip` parts of each path are left out. Of a `model`, an
        unknown field is compared with the fields that there are.
        """
        found = error.errors(include_url=False, include_input=False) if isinstance(error, ValidationError) else error
        short = {each["loc"] for each in found if each["type"] == "too_short"}
        # pydantic counts valid items only: a list of one invalid item has "at least 1 item" as a second, false problem.
        false = short and {loc for loc in short if any(e["loc"][: len(loc)] == loc != e["loc"] for e in found)}
        true = [each for each in found if not (each["type"] == "too_short" and each["loc"] in false)]
        # A default that depends on an invalid field is none of the user's problems.
        true = [each for each in true if each["type"] != "default_factory_not_called"]
        first = [
            (
                ".".join(str(part) for part in each["loc"][skip:]) or root,
                cls.unknown_field + _similar(model, each["loc"])
                if each["type"] == "extra_forbidden"
                else sentence_of(each),
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
    """Return the reason of one of pydantic's errors."""
    sentence = _SENTENCES.get(error["type"]) or PATTERN_SENTENCES.get(str((error.get("ctx") or {}).get("pattern")))
    return sentence or _SHOULD.sub("must ", str(error["msg"]).removeprefix("Value error, "))


FORMER = {
    "collapseHold": "its name is inputOutageHold",
    "least_saving": "its name is min_saving",
    "least_growth_share": "its name is min_growth_share",
    "highest_utilization": "its name is max_utilization",
    "target.flink.url": "its place is application.flink.url",
    "target.flink.job": "its place is application.flink.job",
    "target.docker": "use target.kubernetes for a job in reactive mode, target.flink for another",
}
"""What to write instead of a field that policies or planners' parameters had, by the end of the field's path."""


def _similar(model: type[BaseModel] | None, path: Sequence[str | int]) -> str:
    """Return `: did you mean maxLag?` for an unknown field that resembles one of its object, what to write instead of a
    former one, else nothing."""
    if model is None:
        return ""
    field = ".".join(["", *map(str, path)])
    for former, instead in FORMER.items():
        if field.endswith(f".{former}"):
            return f": {instead}"
    root = _schema(model)
    node: Any = root
    for part in path[:-1]:
        found = _object(node, root)
        node = found.get("items") if isinstance(part, int) else found.get("properties", {}).get(part)
        node = found.get("additionalProperties") if node is None else node
    names = {name.replace("_", "").lower(): name for name in _object(node, root).get("properties", {})}
    close = get_close_matches(str(path[-1]).replace("_", "").lower(), names, n=1, cutoff=0.7)
    return f": did you mean {names[close[0]]}?" if close else ""


@lru_cache(maxsize=100)
def _schema(model: type[BaseModel]) -> dict[str, Any]:
    return model.model_json_schema(by_alias=True)


def _object(node: Any, root: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the schema of an object or list behind references and optional types."""
    while isinstance(node, Mapping):
        given = [each for each in node.get("anyOf", ()) if each.get("type") != "null"]
        if given:
            node = given[0]
        elif "$ref" in node:
            node = root["$defs"][node["$ref"].rpartition("/")[2]]
        else:
            return node
    return {}


def without_nulls(document: Any, model: type[BaseModel]) -> Any:
    """Return the document of a model without its known fields that are null: they are not given, as for Kubernetes' API server.

    A null in a list, below a planner's parameters or in an unknown field stays.
    """
    root = _schema(model)
    return _without_nulls(document, root, root)


def _without_nulls(value: Any, node: Any, root: Mapping[str, Any]) -> Any:
    found = _object(node, root)
    if isinstance(value, list) and "items" in found:
        return [_without_nulls(each, found["items"], root) for each in value]
    if not isinstance(value, dict):
        return value
    fields = found.get("properties", {})
    others = found.get("additionalProperties") or next(iter(found.get("patternProperties", {}).values()), None)
    kept = {}
    for name, each in value.items():
        known = fields.get(name, others)
        if not isinstance(known, Mapping):
            kept[name] = each
        elif each is not None:
            kept[name] = _without_nulls(each, known, root)
    return kept


def printable(text: str, max_characters: int) -> str:
    """Return the text on one line: cut to `max_characters`, control characters and lone surrogates escaped."""
    cut = bounded(text, max_characters)
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in cut)


def read_document(
    model: type[M], document: Any, *, root: str, refusal: type[InvalidDocument] = InvalidDocument, by_name: bool = True
) -> M:
    """Return the model of a parsed YAML or JSON document, or raise `refusal`.

    Strict: no text or boolean for a number, no unknown field, and aliases only unless `by_name`. Messages between
    services are read leniently instead (`read_json`).
    """
    try:
        # Strict mode accepts a list for a tuple and a text for a date only in JSON.
        text = json.dumps(document, default=str, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise refusal([(root, "contains a lone surrogate (half of a character), which is not valid text")]) from None
    except (ValueError, TypeError, RecursionError) as error:
        raise refusal([(root, f"cannot be written as JSON: {str(error)[:200]}")]) from None
    try:
        return model.model_validate_json(text, strict=True, extra="forbid", by_name=by_name, by_alias=True)
    except ValidationError as error:
        raise refusal.of(error, root, model=model) from None


def read_json(model: type[M], content: bytes) -> M:
    """Return the model of a JSON text that any author may have written, or raise `ValidationError`.

    It is parsed before it is validated: pydantic copies the JSON of a field into each of its errors, which takes ten
    times the memory.
    """
    try:
        document = from_json(content)
    except ValueError:
        return model.model_validate_json(content)  # which has the reason
    return model.model_validate(document)


MAX_CALLER_CHARACTERS = 200
"""Maximum length of a token's name."""

_Label = Annotated[str, Field(max_length=317)]
Labels = Annotated[dict[_Label, Annotated[str, Field(max_length=63)]], Field(max_length=100, fail_fast=True)]
MAX_ANNOTATIONS = 50
Annotations = Annotated[
    dict[_Label, Annotated[str, Field(max_length=1000)]], Field(max_length=MAX_ANNOTATIONS, fail_fast=True)
]


class Metadata(Document):
    """Identity and version of the policy. Fields that Kubernetes sets are kept, so that a document may come from either
    side."""

    namespace: Name
    """Namespace of the application, in the form of a Kubernetes namespace. It separates the policies of teams."""
    name: Name
    """Name of the application, unique within its namespace."""
    version: Annotated[int | None, Field(default=None, ge=1, le=MAX_ORDER)] = None
    """Version of the policy, set by the knowledge service at each change. Send it back to replace only the version that
    you have read. It grows with each change; no version repeats, even after a deletion."""
    updated_at: Timestamp | None = None
    """Time of the last change, set by the knowledge service."""
    updated_by: Annotated[str | None, Field(default=None, max_length=MAX_CALLER_CHARACTERS)] = None
    """Token name of the last change's author, set by the knowledge service."""
    owner: Literal["rest", "resource"] | None = None
    """What may change and delete the policy, set by the knowledge service: its REST API (the default), or the
    ScalingPolicy resource of this name in Kubernetes. Both may read, pause and resume it."""
    mode_before_pause: Literal["advise", "act"] | None = None
    """Mode to which the policy resumes, set by the knowledge service while the application is paused. Default: a policy
    that was written as paused resumes to `advise`."""
    labels: Labels = Field(default_factory=dict)
    """Labels, at most 100. Default: none."""
    annotations: Annotations = Field(default_factory=dict)
    """Annotations, at most 50 of 1,000 characters; kubectl's own copy of the document is left out. `weir.dev/paused`
    pauses the application until it is removed or `"false"`. Default: none."""
    uid: Annotated[str | None, Field(max_length=100)] = None
    """Set by Kubernetes."""
    resource_version: Annotated[str | None, Field(max_length=100)] = None
    """Set by Kubernetes, as text."""
    generation: Annotated[int | None, Field(ge=0, le=MAX_COUNT)] = None
    """Set by Kubernetes."""
    creation_timestamp: Timestamp | None = None
    """Set by Kubernetes."""
    deletion_timestamp: Timestamp | None = None
    """Set by Kubernetes."""


_LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"
_CLUSTER_STATE = (
    "managedFields",
    "ownerReferences",
    "finalizers",
    "selfLink",
    "deletionGracePeriodSeconds",
    "generateName",
)


def without_cluster_state(document: Any) -> Any:
    """Return the document without the fields that `kubectl get -o yaml` adds and Weir does not keep."""
    metadata = document.get("metadata") if isinstance(document, dict) else None
    if not isinstance(metadata, dict):
        return document
    kept = {key: value for key, value in metadata.items() if key not in _CLUSTER_STATE}
    if isinstance(annotations := kept.get("annotations"), dict):
        kept["annotations"] = {key: value for key, value in annotations.items() if key != _LAST_APPLIED}
    return {**{key: value for key, value in document.items() if key != "status"}, "metadata": kept}
