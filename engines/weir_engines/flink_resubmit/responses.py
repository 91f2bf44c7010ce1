"""Jars, savepoints and their failures in the responses of Flink's REST API, and the bodies of its requests."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from weir_contracts import Parallelism, Resubmission, ResubmitTarget
from weir_engines.flink.rest import MAX_PARALLELISM, Unreadable, count, instant, mapping, sequence, text

OVERRIDES = "pipeline.jobvertex-parallelism-overrides"
ALREADY = "the job was submitted already"
"""Reason for which Flink refuses a job whose id it knows."""
_EACH_OPERATOR = re.compile(r"1\.(19|20)(\.|$|-)")
"""Versions whose jobs take overrides from the configuration of a run: before 1.19 only the cluster's count, and 2.x does not
apply any to what a jar submits (FLINK-33534, FLINK-38770)."""
MAX_LOCATION = 2000

_FAILURES: tuple[tuple[re.Pattern[str], str], ...] = tuple(
    (re.compile(pattern), sentence)
    for pattern, sentence in (
        (r"Job has already been submitted|DuplicateJobSubmissionException", ALREADY),
        (r"Jar file .{1,400} does not exist", "the jar is not on the cluster any more"),
        (
            r"entry point class .{1,300} (was not found|could not be loaded|has no main)",
            "the jar has no such entry class",
        ),
        (r"Neither a 'Main-Class'", "the jar names no main class: set entryClass"),
        (r"does not have a main\(String\[\]\) method", "the entry class has no main method"),
        (r"Checkpoint expired before completing", "it did not complete within Flink's checkpoint timeout"),
        (r"Not all required tasks are currently running", "not all tasks run"),
        (r"Failed to create savepoint directory", "its directory cannot be written"),
        (
            r"Could not find a file system implementation for scheme",
            "Flink has no file system of its directory's scheme",
        ),
        (r"Permission denied|AccessDenied|AccessControlException", "access to its directory is denied"),
        (r"Cannot find (meta data|checkpoint or savepoint)|not a savepoint at all", "the savepoint cannot be read"),
        (r"Max parallelism mismatch", "the jar has another max parallelism than the savepoint"),
        (r"Cannot map checkpoint/savepoint state", "the savepoint has state of an operator that the jar lacks"),
        (r"failed during stopping", "it is complete, but the job did not end"),
        (r"NoResourceAvailableException|not acquire the minimum required resources", "the cluster has too few slots"),
        (r"Could not find Flink job|FlinkJobNotFoundException", "Flink does not know the job"),
        (r"Could not execute application", "the jar's main method failed"),
    )
)
"""What is known of the reasons of failures. No text of Flink's is passed on: a policy's author chooses the address that it comes
from."""


def known_failure(given: bytes | str) -> str | None:
    """Return the first known reason in a response or a stack trace, or None."""
    trace = given.decode(errors="replace") if isinstance(given, bytes) else given
    return next((sentence for pattern, sentence in _FAILURES if pattern.search(trace)), None)


def failure(trace: str) -> str:
    """Return the first known reason in a stack trace, else a reference to it."""
    return known_failure(trace) or "see the JobManager's log"


def sets_each_operator(document: Any) -> bool:
    """Return whether this version of `GET /config` runs a jar with a parallelism for each operator."""
    version = mapping(document, "/config").get("flink-version")
    return isinstance(version, str) and _EACH_OPERATOR.match(version) is not None


@dataclass(frozen=True)
class Jar:
    """Jar of the cluster."""

    id: str
    name: str
    uploaded_at: datetime | None


def jars(document: Any) -> list[Jar]:
    """Parse `GET /jars`, oldest first, without unreadable entries."""
    found = [
        Jar(entry["id"], entry["name"], instant(entry.get("uploaded")))
        for entry in sequence(mapping(document, "/jars").get("files"), "/jars files")
        if isinstance(entry, dict) and isinstance(entry.get("id"), str) and isinstance(entry.get("name"), str)
    ]
    return sorted(
        found, key=lambda jar: (jar.uploaded_at is not None, jar.uploaded_at and jar.uploaded_at.timestamp(), jar.id)
    )


def is_jar(jar_id: str, target: ResubmitTarget) -> bool:
    """Return whether a jar is the one that the policy names, by its id or its name."""
    return jar_id == target.jar or jar_id.endswith(f"_{target.jar}")


def started_with(document: Any) -> int | None:
    """Return the parallelism that a job was started with, of `GET /jobs/:id/config`; None: it names none."""
    execution = mapping(document, "/jobs/:id/config").get("execution-config")
    parallelism = count(execution.get("job-parallelism")) if isinstance(execution, dict) else None
    return parallelism if parallelism and parallelism <= MAX_PARALLELISM else None


@dataclass(frozen=True)
class SavepointStatus:
    """Savepoint at one instant: under way without location and failure."""

    location: str | None = None
    failure: str | None = None


def savepoint_status(document: Any) -> SavepointStatus:
    """Parse `GET /jobs/:id/savepoints/:trigger`."""
    where = "/jobs/:id/savepoints/:trigger"
    raw = mapping(document, where)
    if mapping(raw.get("status"), f"{where} status").get("id") == "IN_PROGRESS":
        return SavepointStatus()
    operation = mapping(raw.get("operation"), f"{where} operation")
    cause = operation.get("failure-cause")
    if cause is not None:
        trace = cause.get("stack-trace") if isinstance(cause, dict) else None
        return SavepointStatus(failure=failure(trace if isinstance(trace, str) else ""))
    return SavepointStatus(location=_location(operation.get("location"), f"{where} operation.location"))


def last_savepoint(document: Any) -> str | None:
    """Return the location of the newest savepoint of `GET /jobs/:id/checkpoints`; None: there is none."""
    where = "/jobs/:id/checkpoints latest"
    latest = mapping(mapping(document, where).get("latest") or {}, where)
    savepoint = latest.get("savepoint")
    return (
        None if savepoint is None else _location(mapping(savepoint, where).get("external_path"), f"{where}.savepoint")
    )


def has_progressed(document: Any) -> bool:
    """Return whether a job of `GET /jobs/:id/checkpoints` has completed a checkpoint. Its counts begin again with its JobManager,
    which restores it from one that is no savepoint."""
    raw = mapping(document, "/jobs/:id/checkpoints")
    counts, latest = (mapping(raw.get(part) or {}, part) for part in ("counts", "latest"))
    restored = mapping(latest.get("restored") or {}, "restored")
    return bool(count(counts.get("completed"))) or restored.get("is_savepoint") is False


def _location(value: Any, where: str) -> str:
    found = text(value, where)
    if len(found) > MAX_LOCATION:
        raise Unreadable(where, f"a location of {len(found)} characters is too long")
    return found


def root_failure(document: Any) -> str:
    """Return the known reason of `GET /jobs/:id/exceptions`."""
    raw = mapping(document, "/jobs/:id/exceptions")
    history = raw.get("exceptionHistory")
    entries = history.get("entries") if isinstance(history, dict) else None
    traces = [each.get("stacktrace") for each in entries if isinstance(each, dict)] if isinstance(entries, list) else []
    return failure("\n".join(str(each) for each in (raw.get("root-exception"), *traces) if each))


def stop_body(target: ResubmitTarget, job: Resubmission, trigger_id: str) -> dict[str, Any]:
    """Return the body of `POST /jobs/:id/stop`; Flink carries out one of several requests with the same trigger id."""
    return {
        "targetDirectory": f"{target.savepoint_directory.rstrip('/')}/{job.folder}",
        "drain": False,
        "triggerId": trigger_id,
    }


def run_body(
    target: ResubmitTarget, job: Resubmission, job_id: str, parallelism: Parallelism, *, each_operator: bool
) -> dict[str, Any]:
    """Return the body of `POST /jars/:id/run`.

    The graph is made with the parallelism that the job was started with, so that operators are chained as before and the vertices
    keep their ids; where the version takes overrides, these change the vertices after that.
    """
    body: dict[str, Any] = {
        "programArgsList": list(target.args),
        "savepointPath": job.savepoint,
        "allowNonRestoredState": False,
        "jobId": job_id,
    }
    if target.entry_class is not None:
        body["entryClass"] = target.entry_class
    level: int | None = max(parallelism.values())
    if each_operator:
        level = job.parallelism
        body["flinkConfiguration"] = {OVERRIDES: _overrides(job.vertices, parallelism)}
    return body if level is None else {**body, "parallelism": level}


def _overrides(vertices: Mapping[str, str], parallelism: Parallelism) -> str:
    return ",".join(f"{vertices[name]}:{p}" for name, p in parallelism.items())
