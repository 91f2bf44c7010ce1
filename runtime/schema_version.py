"""Messages of a newer schema version: recognised by their type, and refused unread as dead letters.

Within a version only optional fields are added, which a reader ignores. Another version is another type in the
message's headers.
"""

import re

NEWER_VERSION = "newer-version"
"""Code of a dead letter of a newer version."""

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
