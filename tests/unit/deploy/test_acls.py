"""The rights of the services' users of Kafka: what the script grants is what the documentation says."""

import re
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from weir_contracts.base import VERSION
from weir_contracts.topics import TOPICS
from weir_knowledge.decider import NAME as DECIDER
from weir_runtime.lease import LEASES

ROOT = Path(__file__).parents[3]
SCRIPT = ROOT / "deploy" / "kafka" / "acls.sh"
DOCUMENT = ROOT / "docs" / "how-to" / "own-cluster.md"
SERVICES = ("monitor", "analyzer", "planner", "executor", "knowledge")
NAMES = {topic.name for topic in TOPICS} | {LEASES.name}


@dataclass(frozen=True)
class Right:
    user: str
    kind: str
    name: str
    prefixed: bool
    operation: str


def granted(folder: Path) -> list[Right]:
    """Run the script with a program in the place of kafka-acls.sh that writes its arguments down; return what they grant."""
    calls, program = folder / "calls", folder / "kafka-acls.sh"
    program.write_text(f'#!/bin/sh\nfor each; do printf "%s\\n" "$each"; done >>{calls}\necho >>{calls}\n')
    program.chmod(0o755)
    subprocess.run(
        [SCRIPT, "--bootstrap-server", "kafka:9092"],
        env={"KAFKA_ACLS": str(program), "PATH": "/usr/bin:/bin"},
        check=True,
    )
    return [right for call in calls.read_text().split("\n\n") if call for right in _rights(call.split("\n"))]


def _rights(arguments: list[str]) -> Iterator[Right]:
    assert arguments[:4] == ["--bootstrap-server", "kafka:9092", "--add", "--force"], arguments
    pairs = list(zip(arguments[4::2], arguments[5::2], strict=True))
    given = {name: [value for option, value in pairs if option == name] for name, _ in pairs}
    (principal,) = given.pop("--allow-principal")
    prefixed = given.pop("--resource-pattern-type", []) == ["prefixed"]
    operations = given.pop("--operation", [])
    resources = {kind: given.pop(f"--{kind}", []) for kind in ("topic", "group", "transactional-id")}
    assert not given, given
    for kind, names in resources.items():
        for name in names:
            yield from (Right(principal.removeprefix("User:"), kind, name, prefixed, each) for each in operations)


def documented() -> set[tuple[str, str, str]]:
    """Return user, `reads` or `writes` or `groups`, and name of the table."""
    found = set()
    for row in re.findall(r"^\| `(weir-\w+)` \| (.+) \|$", DOCUMENT.read_text(), re.M):
        for what, cell in zip(("reads", "writes", "groups"), row[1].split(" | "), strict=True):
            found |= {(row[0], what, name) for name in re.findall(r"`([\w…-]+)`", cell)}
    return found


def test_the_table_is_what_the_script_grants(tmp_path: Path) -> None:
    """By topic and user: who reads, who writes, which groups."""
    listed = set()
    for right in granted(tmp_path):
        if right.kind == "topic" and not right.prefixed:
            what = {"Read": "reads", "Write": "writes"}[right.operation]
            listed.add((right.user, what, right.name.removeprefix("weir.").removesuffix(f".{VERSION}")))
        elif right.kind == "group" and right.operation == "Read":
            listed.add((right.user, "groups", right.name + "…" * right.prefixed))
    assert listed == documented()
    assert {user for user, _, _ in listed} == {f"weir-{service}" for service in SERVICES}


def test_rights_by_prefix_neither_read_nor_write_topics(tmp_path: Path) -> None:
    """Only the user that runs `python -m weir_runtime.topics` creates and changes topics; every topic that is named exists."""
    rights = granted(tmp_path)
    by_prefix = {(r.user, r.operation) for r in rights if r.kind == "topic" and r.prefixed}
    assert {operation for user, operation in by_prefix if user != "weir-topics"} == {"Describe", "DescribeConfigs"}
    assert {r.name for r in rights if r.kind == "topic" and not r.prefixed} == NAMES
    owners = {
        name: {r.user for r in rights if (r.name, r.operation) == (f"weir.{name}.{VERSION}", "Write")}
        for name in ("changes", "policies", "actions", "plans", "outcomes")
    }
    decided = {name: {"weir-knowledge"} for name in ("changes", "policies", "actions")}
    assert owners == {**decided, "plans": {"weir-planner"}, "outcomes": {"weir-executor"}}


def test_only_knowledge_writes_as_the_decider(tmp_path: Path) -> None:
    """Its transactional id and its group are those of the code."""
    assert {(r.user, r.name, r.operation) for r in granted(tmp_path) if r.kind == "transactional-id"} == {
        ("weir-knowledge", DECIDER, "Describe"),
        ("weir-knowledge", DECIDER, "Write"),
    }
    assert DECIDER.startswith("weir-knowledge")
