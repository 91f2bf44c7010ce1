"""First start: makes the tokens, each readable by its service only, and sets the owners of the volumes for Flink's
checkpoints and for the policy's job.

Runs as root with the capability chown alone, and without a network. Existing files stay.
"""

import json
import os
import secrets
import sys
from pathlib import Path

SECRETS = Path("/secrets")
WEIR, GRAFANA, PROMETHEUS = int(os.environ["WEIR_UID"]), 472, 65534
CHECKPOINTS, FLINK = Path("/data/flink"), int(os.environ["FLINK_UID"])
POLICIES = Path("/data/policies")
COMPLETE = SECRETS / "knowledge" / "WEIR_TOKENS"
"""Written last: without it all tokens are made again."""


Callers = dict[str, tuple[str, str | list[str]]]
"""A token and its roles by name."""


def callers(**roles: str | list[str]) -> Callers:
    """Return a new token for each name, with its role or roles."""
    return {name: (secrets.token_urlsafe(32), role) for name, role in roles.items()}


def token_document(people: Callers) -> str:
    """Return the WEIR_TOKENS of a service with these callers."""
    return json.dumps({token: {"name": name, "role": role} for name, (token, role) in people.items()})


def keep(path: Path, text: str, owner: int = WEIR) -> None:
    """Write a file atomically, readable by its owner only."""
    new = path.with_name(f".{path.name}")
    new.unlink(missing_ok=True)
    with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o400), "w") as file:
        file.write(text)
    os.chown(new, owner, owner)
    new.replace(path)


def make_tokens() -> None:
    """Make the tokens: knowledge accepts operator and executor, the planner operator and knowledge, and every service
    that of Prometheus."""
    metrics, operator = callers(metrics="metrics"), callers(operator=["write", "planner-admin"])
    people = {**metrics, **operator, **callers(executor="executor")}
    planners = {**metrics, **operator, **callers(knowledge="read")}
    keep(SECRETS / "planner" / "WEIR_TOKENS", token_document(planners))
    keep(SECRETS / "executor" / "WEIR_TOKENS", token_document(metrics))
    keep(SECRETS / "executor" / "WEIR_KNOWLEDGE_TOKEN", people["executor"][0])
    keep(SECRETS / "others" / "WEIR_TOKENS", token_document(metrics))
    keep(SECRETS / "prometheus" / "token", metrics["metrics"][0], PROMETHEUS)
    keep(SECRETS / "grafana" / "password", secrets.token_urlsafe(18), GRAFANA)
    keep(SECRETS / "knowledge" / "WEIR_KNOWLEDGE_PLANNER_TOKEN", planners["knowledge"][0])
    keep(SECRETS / "knowledge" / "operator", people["operator"][0])
    keep(COMPLETE, token_document(people))


def main() -> int:
    os.chown(CHECKPOINTS, FLINK, FLINK)
    os.chown(POLICIES, WEIR, WEIR)
    if COMPLETE.exists():
        print("prepare: tokens exist already")
    else:
        make_tokens()
        print("prepare: made new tokens; to read yours: docker compose exec knowledge cat /run/weir/operator")
    return 0


if __name__ == "__main__":
    sys.exit(main())
