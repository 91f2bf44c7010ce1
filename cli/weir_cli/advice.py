"""State and advice of each application, as `weir run` shows them: on a screen, as lines, and as a document."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from weir_contracts import Analysis, Plan, changes, counted
from weir_knowledge.newest import Newest
from weir_knowledge.summary import Summary, summarise
from weir_knowledge.view import View
from weir_runtime.clock import Clock

from .output import estimated, number
from .terminal import Listing

EXPLAINED = 5
"""Applications with their reasons on the screen, those that Weir would change first."""


@dataclass(frozen=True)
class Advice:
    """The state of one application, and what Weir would do."""

    summary: Summary
    analysis: Analysis | None
    plan: Plan | None
    followed_slots: int | None = None
    """Slots now if the plans had been followed. None: unknown, or the policy acts."""

    @property
    def application(self) -> str:
        return self.summary.application

    @property
    def utilization(self) -> float | None:
        """Demand of the bottleneck over its capacity; None if one of the two is unknown."""
        return None if self.analysis is None else self.used(self.analysis.bottleneck or "")

    def used(self, operator: str) -> float | None:
        """Return the demand of an operator over its capacity; None if one of the two is unknown."""
        found = None if self.analysis is None else self.analysis.operator(operator)
        if found is None:
            return None
        capacity, demand = found.true_processing_rate.value, found.target_input_rate.value
        return None if not capacity or demand is None else demand / capacity

    @property
    def slots(self) -> tuple[int, int] | None:
        """Slots now and with the plan; None without a plan that changes the parallelism."""
        plan, analysis = self.plan, self.analysis
        if plan is None or plan.approved is None or analysis is None or analysis.topology is None:
            return None
        return analysis.topology.slots(plan.current), analysis.topology.slots(plan.approved)

    @property
    def changes(self) -> bool:
        return self.plan is not None and self.plan.kind != "hold"

    @property
    def is_explained(self) -> bool:
        """Whether a decision rests on a known capacity, or on what keeps the application from being read."""
        return self.plan is not None and (self.changes or self.plan.code not in _WAITING)

    @property
    def cost(self) -> str:
        """The slots, or members of a group, that the change needs or frees, as a sentence; empty without a change."""
        if self.slots is None or self.analysis is None:
            return ""
        now, then = self.slots
        present = counted(now, "member" if self.analysis.policy.shares_tasks else "slot")
        if then == now:
            return f"it keeps {present}"
        if then > now:
            return f"it needs {then - now} more than {present}"
        return f"it frees {now - then} of {present}"

    def document(self) -> dict[str, Any]:
        """Return the same for programs; None is unknown."""
        summary, plan, slots = self.summary, self.plan, self.slots
        decision = None
        if plan is not None:
            decision = {
                "kind": plan.kind,
                "code": plan.code,
                "sentence": plan.sentence,
                "parallelism": plan.approved,
                "at": plan.created_at.isoformat(),
            }
        return {
            "application": self.application,
            "mode": summary.mode,
            "status": summary.status,
            "problems": summary.problems,
            "parallelism": summary.observed,
            "bottleneck": summary.bottleneck,
            "utilization": self.utilization,
            "arrival_rate": summary.arrival_rate,
            "lag_records": summary.lag_records,
            "lag_seconds": summary.lag_seconds,
            "expected_latency_seconds": None if self.analysis is None else self.analysis.expected_latency_seconds.value,
            "lower_bounds": summary.lower_bounds,
            "objective_seconds": summary.objective_seconds,
            "decision": decision,
            "slots": None if slots is None else {"now": slots[0], "then": slots[1]},
            "spend": summary.spend_sentence,
        }


_WAITING = frozenset({"metric-missing", "warming-up", "stale", "unreachable", "not-found", "too-few-samples"})
"""Codes of holds until enough was read."""


async def read_advice(view: View, clock: Clock) -> list[Advice]:
    """Return all applications, by name."""
    names = await view.applications()
    found = []
    for digest, policy, action in await view.known(names):
        newest = await view.newest(digest.application, ["analysis", "plan"]) or Newest(application=digest.application)
        followed = None if digest.advice is None else digest.advice.followed_slots
        summary = summarise(digest, policy, action, clock.now(), view.prices)
        found.append(Advice(summary, newest.analysis, newest.plan, followed))
    return found


def screen(advice: Sequence[Advice], notes: Sequence[str]) -> RenderableType:
    """Return the screen: the notes, a line for each application, and the reasons of some of them."""
    table = Listing(
        "APPLICATION", "STATUS", "PARALLELISM", "BOTTLENECK", "USED", "ARRIVALS", "LAG", optional=("ARRIVALS",)
    )
    table.add_column("WEIR WOULD")
    for each in advice:
        summary = each.summary
        table.add_row(
            each.application,
            Text("silent", "bold red") if summary.silent else str(summary.status or "–"),
            parallelism(summary.observed),
            Text(summary.bottleneck or "–", no_wrap=True, overflow="ellipsis"),
            percent(each.utilization),
            number(summary.arrival_rate, "/s"),
            lag(each),
            Text(proposal(each), "bold green" if each.changes else "", no_wrap=True, overflow="ellipsis"),
        )
    reasons = Table.grid(padding=(0, 2))
    reasons.add_column(style="bold", no_wrap=True)
    reasons.add_column()
    for each in sorted(advice, key=lambda one: not one.changes)[:EXPLAINED]:
        for i, sentence in enumerate(sentences(each)):
            reasons.add_row("" if i else each.application, sentence)
    lines = [Text(note, "dim") for note in notes]
    return Group(*lines, Text(), table, Text(), reasons)


def line(advice: Advice) -> str:
    """Return one application as a line, where there is no terminal."""
    summary = advice.summary
    figures = [
        str(summary.status or "no reading yet"),
        f"parallelism {parallelism(summary.observed)}",
        f"bottleneck {summary.bottleneck or 'unknown'} {percent(advice.utilization)} used",
        f"lag {lag(advice)}",
    ]
    decided, reasons = proposal(advice), "; ".join(sentences(advice))
    if not reasons.startswith(decided):  # as the sentence of a change does
        reasons = f"{decided}: {reasons}"
    return f"{advice.application}: {', '.join(figures)}; {reasons}"


def sentences(advice: Advice) -> list[str]:
    """Return the reasons of the decision, its cost, and what following the plans would have saved."""
    summary, plan = advice.summary, advice.plan
    found = [] if plan is None else [plan.sentence]
    if advice.cost:
        found.append(advice.cost)
    if summary.obstacle and summary.mode == "act":
        found.append(summary.obstacle)
    if (summary.advice or summary.spend) and summary.spend_sentence:
        found.append(summary.spend_sentence)
    return (
        found or summary.problems[:1] or ["nothing was decided yet: capacity is known after half a minute of readings"]
    )


def proposal(advice: Advice) -> str:
    """Return what Weir would do, in short."""
    plan = advice.plan
    if plan is None:
        return "wait for readings"
    if plan.approved is None:
        return "restart an instance" if plan.restarts else f"hold ({plan.code})"
    is_there = all(plan.current.get(name) == to for name, to in plan.approved.items())
    return "hold" if is_there else changes(plan.current, plan.approved)


def parallelism(observed: Mapping[str, int] | None) -> str:
    """Return a vector in short: one number where all operators have the same."""
    if not observed:
        return "–"
    values = list(observed.values())
    return (
        str(values[0])
        if len(set(values)) == 1
        else "/".join(str(each) for each in values[:8]) + ("…" if len(values) > 8 else "")
    )


def percent(share: float | None) -> str:
    return "–" if share is None else f"{share:.0%}"


def lag(advice: Advice) -> str:
    """Return the lag in seconds; without the brokers' times the expected latency, which needs none."""
    summary, analysis = advice.summary, advice.analysis
    bound = summary.lower_bounds.get("lag_seconds")
    if summary.lag_seconds is not None or bound is not None:
        return estimated({"value": summary.lag_seconds, "lower_bound": bound}, " s", 1)
    expected = None if analysis is None else analysis.expected_latency_seconds.value
    if expected is not None:
        return f"~{number(expected, ' s', 1)}"
    return "–" if summary.lag_records is None else number(summary.lag_records, " records")
