"""Summaries of applications as the store has them: everything that many of them need in one reading of the store."""

import asyncio
from collections.abc import Sequence
from datetime import datetime

from weir_contracts import PolicySpec
from weir_runtime.clock import Clock

from .core import SUMMARISED, Newest, Summary, summarise
from .view import Known, View

DEFAULT_INTERVAL_SECONDS: float = PolicySpec.model_fields["interval"].default.total_seconds()
"""Of an application without a policy."""
READ_AT_ONCE = 50
"""Applications: about a megabyte."""


async def summaries(view: View, clock: Clock, applications: Sequence[str]) -> list[Summary]:
    """Return the summaries of applications in their order, also of those without messages."""
    found: list[Summary] = []
    for begin in range(0, len(applications), READ_AT_ONCE):
        piece = applications[begin : begin + READ_AT_ONCE]
        known = await view.known(piece, SUMMARISED)
        for name in piece:
            found.append(summary_of(name, known[name], clock.now()))
            await asyncio.sleep(0)  # parsing takes time: other requests are answered in between
    return found


def summary_of(application: str, known: Known, now: datetime) -> Summary:
    """Return the summary of an application by what is stored of it, also of one without messages."""
    newest, policy, action = known
    return summarise(
        newest or Newest(application=application),
        action,
        now,
        mode=policy.spec.mode if policy else None,
        objective_seconds=policy.spec.objective.bound_seconds if policy else None,
        interval_seconds=policy.spec.interval.total_seconds() if policy else DEFAULT_INTERVAL_SECONDS,
    )


async def summary_by_name(view: View, clock: Clock, application: str) -> Summary:
    """Return an application's summary, also of one without messages."""
    return (await summaries(view, clock, [application]))[0]
