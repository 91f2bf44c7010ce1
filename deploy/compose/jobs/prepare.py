"""A first start: makes the tokens, each where only its reader finds it, and gives Flink the volume of its checkpoints and the
policy's job the one where it remembers what it has put.

Runs as root with no capability but chown, and without a network. What is there already stays as it is.
"""

import json
import os
import secrets
import sys
from pathlib import Path

SECRETS = Path("/secrets")
WEIR, GRAFANA = int(os.environ["WEIR_UID"]), 472
CHECKPOINTS, FLINK = Path("/data/flink"), int(os.environ["FLINK_UID"])
POLICIES = Path("/data/policies")
COMPLETE = SECRETS / "knowledge" / "WEIR_TOKENS"
"""Written last: without it everything is made anew."""


def callers(**roles: str) -> dict[str, tuple[str, str]]:
    """A new token for each name, with its role."""
    return {name: (secrets.token_urlsafe(32), role) for name, role in roles.items()}


def known(people: dict[str, tuple[str, str]]) -> str:
    """What a service that is called reads."""
    return json.dumps({token: {"name": name, "role": role} for name, (token, role) in people.items()})


def keep(path: Path, text: str, owner: int = WEIR) -> None:
    """Whole or not at all, and readable by its owner only."""
    new = path.with_name(f".{path.name}")
    new.unlink(missing_ok=True)
    with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o400), "w") as file:
        file.write(text)
    os.chown(new, owner, owner)
    new.replace(path)


def make_tokens() -> None:
    """The knowledge API knows a person and the executor, the planner knows a person and knowledge; the rest know nobody."""
    people = callers(operator="write", executor="write")
    planners = {"operator": people["operator"], **callers(knowledge="read")}
    keep(SECRETS / "planner" / "WEIR_TOKENS", known(planners))
    keep(SECRETS / "executor" / "WEIR_TOKENS", known(callers(nobody="read")))
    keep(SECRETS / "executor" / "WEIR_KNOWLEDGE_TOKEN", people["executor"][0])
    keep(SECRETS / "others" / "WEIR_TOKENS", known(callers(nobody="read")))
    keep(SECRETS / "grafana" / "password", secrets.token_urlsafe(18), GRAFANA)
    keep(SECRETS / "knowledge" / "WEIR_KNOWLEDGE_PLANNER_TOKEN", planners["knowledge"][0])
    keep(SECRETS / "knowledge" / "operator", people["operator"][0])
    keep(COMPLETE, known(people))


def main() -> int:
    os.chown(CHECKPOINTS, FLINK, FLINK)
    os.chown(POLICIES, WEIR, WEIR)
    if COMPLETE.exists():
        print("prepare: tokens are there already")
    else:
        make_tokens()
        print("prepare: made new tokens; to read yours: docker compose exec knowledge cat /run/weir/operator")
    return 0


if __name__ == "__main__":
    sys.exit(main())
