"""Messages of a newer schema version: recognised by their type, refused unread, and reported by readiness while they
come.

Within a version only optional fields are added, which a reader ignores. Another version is another type in the
message's headers.
"""

import re
from dataclasses import dataclass, field

from prometheus_client import Counter

from .clock import Clock
from .labels import CardinalityLimiter

NEWER_VERSION = "newer-version"
"""Code of a dead letter of a newer version."""
REPORTED_SECONDS = 60.0
"""How long readiness reports the last newer message: long enough to be noticed after an upgrade."""

_NEWER = Counter(
    "weir_newer_messages_total",
    "Messages sent to the dead-letter topic because a newer version of Weir wrote them",
    ["type"],
)
_label = CardinalityLimiter(20)
_TYPE = re.compile(r"dev\.weir\.[a-z-]{1,40}\.v(\d{1,4})(?:(alpha|beta)(\d{1,4}))?")
_STAGES = {"alpha": 0, "beta": 1, None: 2}


def version_rank(type: str) -> tuple[int, int, int] | None:
    """Return the rank of a type's version in Kubernetes' order (v1alpha1, v1beta2, v1, v2alpha1); None if it is no type
    of Weir."""
    found = _TYPE.fullmatch(type)
    if found is None:
        return None
    return int(found[1]), _STAGES[found[2]], int(found[3] or 0)


def is_newer(type: str, own: str) -> bool:
    """Return whether `type` has a later version than the type `own`."""
    if type == own:
        return False  # every message, except during an upgrade
    theirs, ours = version_rank(type), version_rank(own)
    return theirs is not None and ours is not None and theirs > ours


@dataclass
class NewerMessages:
    """Counts newer messages of this process, and fails its readiness check for a minute after each."""

    clock: Clock
    _last: tuple[float, str] | None = field(default=None, init=False)

    def record(self, type: str, sentence: str) -> None:
        """Record a message of a newer version; `sentence` is what readiness reports."""
        _NEWER.labels(_label(type)).inc()
        self._last = self.clock.monotonic(), sentence

    async def ping(self) -> None:
        """Raise `ValueError` with the sentence of the last newer message for `REPORTED_SECONDS`."""
        if self._last is not None and self.clock.monotonic() - self._last[0] < REPORTED_SECONDS:
            raise ValueError(self._last[1])
