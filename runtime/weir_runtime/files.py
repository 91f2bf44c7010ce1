"""Files of credentials and other settings, which are read again when they change, so that a new password or a further
namespace needs no restart.

Kubernetes replaces the files of a mounted Secret or ConfigMap by another target of a symbolic link; other programs
write a new file. Both show in a file's number, size or time of change.
"""

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from pathlib import Path
from typing import Any, Generic, TypeVar

import structlog
from prometheus_client import Gauge
from pydantic_core import from_json

from .loop import Stop
from .reach import ANY

MAX_BYTES = 1_000_000
NAMESPACES = "namespaces"
"""Field of an entry: namespaces of the policies that may use it, or `*`."""
T = TypeVar("T")
V = TypeVar("V")
CHECK_SECONDS = 5.0
"""Between two looks at the files. Kubernetes takes up to a minute to replace them."""
FileState = tuple[str, int, int, int]
"""Path, number, size and time of change of a file; zeros if there is none."""
_UNUSABLE = Gauge(
    "weir_files_unusable", "1 while a file was changed and cannot be used, so that its last content counts", ["setting"]
)


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


def state_of(paths: Iterable[Path]) -> tuple[FileState, ...]:
    """Return the state of files, which changes with their content."""
    found = []
    for path in paths:
        try:
            stat = path.stat()
            found.append((str(path), stat.st_ino, stat.st_size, stat.st_mtime_ns))
        except OSError:
            found.append((str(path), 0, 0, 0))
    return tuple(found)


class FollowedFiles(Generic[T]):
    """Value that is read from files. While a changed file cannot be used, the last value counts, which is logged once and
    is the metric `weir_files_unusable`."""

    def __init__(self, setting: str, read: Callable[[], T], paths: Callable[[T], Iterable[Path]]) -> None:
        """`paths` are the files of a value: those that it names count as well. An error of the first `read` escapes."""
        self.setting = setting
        self._read = read
        self._paths = paths
        self._problem = ""
        self._state, self.value = self._load()

    def _load(self) -> tuple[tuple[FileState, ...], T]:
        # The state is older than the value: a change in between is read at the next look.
        state = state_of(self._paths(self._read()))
        return state, self._read()

    def renew(self) -> bool:
        """Read the files if one of them changed; return whether they were read."""
        log = structlog.get_logger("files")
        if state_of(self._paths(self.value)) == self._state:
            self._report("")
            return False
        try:
            self._state, self.value = self._load()
        except (ValueError, OSError) as error:
            if (problem := str(error)) != self._problem:
                log.warning(
                    "file-unusable", setting=self.setting, reason=problem, consequence="its last content counts"
                )
            self._report(problem)
            return False
        self._report("")
        log.info("file-read", setting=self.setting)
        return True

    def _report(self, problem: str) -> None:
        self._problem = problem
        _UNUSABLE.labels(self.setting).set(bool(problem))


class FollowedMapping(Mapping[str, V]):
    """Entries of followed files as they are now."""

    def __init__(self, files: FollowedFiles[Mapping[str, V]]) -> None:
        self._files = files

    def __getitem__(self, name: str) -> V:
        return self._files.value[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._files.value)

    def __len__(self) -> int:
        return len(self._files.value)


class FollowedSet(Set[V]):
    """Elements of followed files as they are now, and fixed ones."""

    def __init__(self, files: FollowedFiles[frozenset[V]], fixed: frozenset[V] = frozenset()) -> None:
        self._files = files
        self._fixed = fixed

    def __contains__(self, element: object) -> bool:
        return element in self._fixed or element in self._files.value

    def __iter__(self) -> Iterator[V]:
        return iter(self._fixed | self._files.value)

    def __len__(self) -> int:
        return len(self._fixed | self._files.value)


async def follow(files: Sequence[FollowedFiles[Any]], stop: Stop, check_seconds: float = CHECK_SECONDS) -> None:
    """Read changed files again until stopped."""
    while not await stop.wait(check_seconds):
        for each in files:
            await asyncio.to_thread(each.renew)
