"""Documents out of YAML text that a person wrote; whatever is wrong with it is one line that names the place."""

import sys
from pathlib import Path
from typing import Any

from runtime.documents import Unreadable, read_yaml

from .errors import InvalidInput


def documents(file: str | Path) -> list[Any]:
    """All documents of a file, or with `-` of standard input; empty ones left out."""
    try:
        text = sys.stdin.read() if file == "-" else Path(file).read_text(encoding="utf-8")
        return read_yaml(text, aliases=True)
    except OSError as error:
        raise InvalidInput(f"{file}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise InvalidInput(f"{file}: is not UTF-8 text: {error.reason} at byte {error.start}") from None
    except Unreadable as error:
        raise InvalidInput(f"{file}{f':{error.line}' if error.line else ''}: {error}") from None


def document(file: str | Path) -> Any:
    """The only document of a file; None where it holds none."""
    found = documents(file)
    if len(found) > 1:
        raise InvalidInput(f"{file}: holds {len(found)} documents, and one is wanted")
    return found[0] if found else None
