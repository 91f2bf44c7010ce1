"""Messages of a campaign, kept for the summary at its end, since compaction deletes records."""

import json
import threading
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from weir_contracts import TERMINAL
from weir_contracts.topics import ANALYSES, DEAD_LETTERS, OBSERVATIONS, OUTCOMES, PLANS

from bench.follower import TopicFollower

FOLLOWED = (OBSERVATIONS, ANALYSES, PLANS, OUTCOMES, DEAD_LETTERS)


@dataclass
class LedgerSummary:
    """Outcome of every message. Lists hold ids, plans without an end also what is known of them; all but the counts are
    empty if nothing went wrong."""

    observations: int = 0
    analyses: int = 0
    plans: int = 0
    plans_to_scale: int = 0
    requests: int = 0
    dead_letters: int = 0
    observations_without_analysis: list[str] = field(default_factory=list)
    plans_without_end: list[str] = field(default_factory=list)
    plans_requested_twice: list[str] = field(default_factory=list)

    @property
    def clean(self) -> bool:
        """Whether no message was lost, repeated or sent to the dead-letter topic."""
        return not (
            self.dead_letters
            or self.observations_without_analysis
            or self.plans_without_end
            or self.plans_requested_twice
        )


class Ledger:
    """The messages of a campaign by topic, in the order of each partition."""

    def __init__(self) -> None:
        self.messages: dict[str, list[dict[str, Any]]] = defaultdict(list)
        self._lock = threading.Lock()

    def add(self, topic: str, message: dict[str, Any]) -> None:
        with self._lock:
            self.messages[topic].append(message)

    def of(self, topic: str) -> list[dict[str, Any]]:
        """Return the messages of a topic so far."""
        with self._lock:
            return list(self.messages[topic])

    def summary(self, settled_observation: str | None = None) -> LedgerSummary:
        """Return the outcome of every message; observations after `settled_observation` may still be on their way."""
        observations, analyses = self.of(OBSERVATIONS.name), self.of(ANALYSES.name)
        outcomes, plans = self.of(OUTCOMES.name), self.of(PLANS.name)
        analysed = {analysis["observation_id"] for analysis in analyses}
        to_scale = [plan["id"] for plan in plans if plan["kind"] == "scale" and plan["mode"] == "act"]
        requests = _requests(outcomes)
        ended = {o["plan_id"] for o in outcomes if o["phase"] in TERMINAL}
        return LedgerSummary(
            observations=len(observations),
            analyses=len(analyses),
            plans=len(plans),
            plans_to_scale=len(set(to_scale)),
            requests=sum(len(actions) for actions in requests.values()),
            dead_letters=len(self.of(DEAD_LETTERS.name)),
            observations_without_analysis=[
                id for id in _until(settled_observation, (o["id"] for o in observations)) if id not in analysed
            ],
            plans_without_end=_without_end(plans, outcomes, set(to_scale) - ended),
            plans_requested_twice=sorted(plan for plan, actions in requests.items() if len(actions) > 1),
        )


def _without_end(plans: list[dict[str, Any]], outcomes: list[dict[str, Any]], open_ids: set[str]) -> list[str]:
    """When each was made, and how far it came."""
    made = {plan["id"]: plan["created_at"] for plan in plans}
    came = {id: [o["phase"] for o in outcomes if o["plan_id"] == id] for id in open_ids}
    return sorted(f"{id} of {made[id]}: {', '.join(came[id]) or 'no outcome'}" for id in open_ids)


def _until(last: str | None, ids: Iterable[str]) -> list[str]:
    found = []
    for id in ids:
        found.append(id)
        if id == last:
            break
    return found


def _requests(outcomes: list[dict[str, Any]]) -> dict[str, set[tuple[str, str]]]:
    """By plan, the requests that an engine accepted: action and when."""
    found: dict[str, set[tuple[str, str]]] = defaultdict(set)
    for outcome in outcomes:
        action = outcome.get("action")
        if action and action.get("requested_at"):
            found[outcome["plan_id"]].add((action["id"], action["requested_at"]))
    return found


def follow(bootstrap_servers: str, ledger: Ledger, partitions: int) -> TopicFollower:
    """Let the ledger take in all topics of the loop from their beginning."""
    return TopicFollower(
        bootstrap_servers,
        [topic.name for topic in FOLLOWED],
        partitions,
        lambda message: ledger.add(str(message.topic()), json.loads(message.value() or b"")),
    )
