"""Files of credentials and other settings, and what a policy may not use of them."""

from pathlib import Path
from typing import Any

from pydantic_core import from_json

MAX_BYTES = 1_000_000
ANY = "*"
NAMESPACES = "namespaces"
"""Field of an entry: namespaces of the policies that may use it, or `*`."""


class CredentialsRefused(Exception):
    """Credentials that do not exist, or not for this address; the sentence names the setting."""


def read_credentials_file(path: Path, setting: str) -> bytes:
    """Return the content of a file, or `ValueError` that names the setting, or the field, of the path."""
    try:
        with path.open("rb") as file:
            content = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise ValueError(f"{setting}: cannot read {path}: {type(error).__name__}") from None
    if len(content) > MAX_BYTES:
        raise ValueError(f"{setting}: {path} has more than {MAX_BYTES:,} bytes")
    return content.removeprefix(b"\xef\xbb\xbf")  # a byte order mark


def read_text(path: Path, setting: str) -> str:
    """Return the text of a file, or `ValueError` that names the setting."""
    try:
        return read_credentials_file(path, setting).decode()
    except UnicodeDecodeError:
        raise ValueError(f"{setting}: {path} is not UTF-8 text") from None


def words(text: str) -> list[str]:
    """Return what commas and white space separate in a file; # begins a comment."""
    lines = (line.partition("#")[0] for line in text.splitlines())
    return [word for line in lines for word in line.replace(",", " ").split()]


def read_namespaces(value: Any) -> frozenset[str]:
    """Return the namespaces of an entry, a list or text with commas; `ValueError` unless it names one."""
    parts = value.split(",") if isinstance(value, str) else value
    if not isinstance(parts, list) or not all(isinstance(part, str) for part in parts):
        parts = []
    found = frozenset(filter(None, (part.strip() for part in parts)))
    if not found:
        raise ValueError(f'must list the namespaces of the policies that may use the entry, or "{ANY}"')
    return found


def read_object(path: Path, setting: str, what: str) -> dict[str, Any]:
    """Return the JSON object in a file, or `ValueError` that names the setting; `what` the object must be."""
    content = read_credentials_file(path, setting)
    try:
        document: Any = from_json(content)
    except ValueError:
        raise ValueError(f"{setting}: {path} is not JSON") from None
    if not isinstance(document, dict):
        raise ValueError(f"{setting}: {path} must {what}")  # noqa: TRY004 - the content is wrong, not the caller
    return document
