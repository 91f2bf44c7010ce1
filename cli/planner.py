"""`weir planner …`: the group of commands about planners."""

import typer

from .planner_compare import compare
from .planner_new import new_command

planner = typer.Typer(no_args_is_help=True, help="Planners: how they did.")
planner.command()(compare)
planner.command(name="new")(new_command)


@planner.callback()
def _planners() -> None:
    """Planners: how they did."""
