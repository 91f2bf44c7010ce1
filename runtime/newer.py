"""Messages that a newer Weir wrote: told apart from damage, and said in readiness for as long as they come.

Within a version only optional fields are added, which a reader ignores. Another version is another type in the message's headers.
"""

import re

from prometheus_client import Counter

from .clock import Clock
from .labels import FewLabels

SHOWN_SECONDS = 60.0
"""How long readiness speaks of the last one: whoever looks after an upgrade sees it, and one stray message is no outage for long."""

_SEEN = Counter("weir_newer_messages_total", "Messages put aside because a newer version of Weir wrote them", ["type"])
_label = FewLabels(20)
_TYPE = re.compile(r"dev\.weir\.[a-z-]{1,40}\.v(\d{1,4})(?:(alpha|beta)(\d{1,4}))?")
_REASON = re.compile(r"is (\S+), from a newer Weir than this, ")
_STAGES = {"alpha": 0, "beta": 1, None: 2}


def version_rank(type: str) -> tuple[int, int, int] | None:
    """Where a type's version stands among versions, ordered as Kubernetes orders them: v1alpha1, v1beta2, v1, v2alpha1.

    None if it is no type of Weir's.
    """
    found = _TYPE.fullmatch(type)
    if found is None:
        return None
    return int(found[1]), _STAGES[found[2]], int(found[3] or 0)


def newer(type: str, own: str) -> bool:
    """Whether `type` is of a later version than the type `own`."""
    if type == own:
        return False  # every message, but for an upgrade
    theirs, ours = version_rank(type), version_rank(own)
    return theirs is not None and ours is not None and theirs > ours


def reason(type: str, topic: str) -> str:
    """Why a record of `topic` is put aside unread."""
    return (
        f"is {type}, from a newer Weir than this, which reads {topic}: upgrade those that read before those that write"
    )


def type_in(reason: str) -> str | None:
    """Return the type that a dead letter's reason names as newer; None for any other reason."""
    found = _REASON.match(reason)
    return found[1] if found else None


class _Seen:
    """How many came to this process, and the last one's sentence."""

    def __init__(self) -> None:
        self.count = 0
        self.last = ""


# Beside the counter, and for the whole process as it is: messages are decoded in many places, readiness is one.
_seen = _Seen()


def note(type: str, sentence: str) -> None:
    """One came."""
    _SEEN.labels(_label(type)).inc()
    _seen.count += 1
    _seen.last = sentence


class NewerMessages:
    """The readiness check."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._known = _seen.count
        self._seen_at: float | None = None

    async def ping(self) -> None:
        """`ValueError` with the last one's sentence while they come, and for a while after."""
        now = self._clock.monotonic()
        if _seen.count > self._known:
            self._known, self._seen_at = _seen.count, now
        if self._seen_at is not None and now - self._seen_at < SHOWN_SECONDS:
            raise ValueError(_seen.last)
