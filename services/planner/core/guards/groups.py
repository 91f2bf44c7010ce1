"""Guard on consumer groups: nothing is added and nothing taken away while their tasks move."""

from services.planner.core import messages

from .proposal import Proposal

MOVING = ("rebalancing", "restoring", "migrating")
"""Symptoms of tasks that move, wait for their state, or will move once it is warmed up."""


def tasks_moving(proposal: Proposal) -> Proposal:
    """Prevent changes while tasks of a consumer group move: another change would begin their movement again."""
    context, (up, down) = proposal.context, proposal.moves
    moving = next((symptom for symptom in context.analysis.symptoms if symptom.code in MOVING), None)
    if moving is None or context.request.deployment.group is None:
        return proposal
    return proposal.kept("tasks-moving", messages.tasks_moving(up + down, moving.evidence), up + down)
