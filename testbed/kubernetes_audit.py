"""The API server's audit log: which user has asked for what, and how it was answered."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class AuditEvent:
    """One request as the API server has logged it; a watch is logged when it starts.

    `user` is empty without authentication, `resource` has its subresource after a slash, `code` is the HTTP status.
    """

    user: str
    verb: str
    group: str
    resource: str
    namespace: str
    name: str
    code: int

    @classmethod
    def of(cls, raw: Mapping[str, Any]) -> "AuditEvent":
        """Return the event of one line of the log, decoded."""
        target = raw.get("objectRef", {})
        resource = "/".join(part for part in (target.get("resource"), target.get("subresource")) if part)
        return cls(
            user=raw["user"].get("username", ""),
            verb=raw["verb"],
            group=target.get("apiGroup", ""),
            resource=resource,
            namespace=target.get("namespace", ""),
            name=target.get("name", ""),
            code=raw.get("responseStatus", {}).get("code", 0),
        )


def audit_policy(left_out: Sequence[str]) -> dict[str, Any]:
    """Return a policy that logs each request once, but for those of the users `left_out` and of Kubernetes'
    controllers."""
    return {
        "apiVersion": "audit.k8s.io/v1",
        "kind": "Policy",
        "omitStages": ["RequestReceived"],
        "rules": [
            {"level": "None", "users": [*left_out, "system:apiserver"]},
            {"level": "None", "userGroups": ["system:serviceaccounts:kube-system", "system:nodes"]},
            {"level": "Metadata"},
        ],
    }


def read_events(log: Path) -> Iterator[AuditEvent]:
    """Yield the requests in a log, in order; a line that is still being written is left for the next time."""
    logged = set()  # a watch has a line when it starts and one when it ends
    with log.open() as lines:
        for line in lines:
            raw = json.loads(line) if line.endswith("\n") else {}
            if raw and raw["auditID"] not in logged:
                logged.add(raw["auditID"])
                yield AuditEvent.of(raw)
