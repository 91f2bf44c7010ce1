"""`weir planner …`: the group of commands about planners."""

import typer

from .planner_compare import compare

planner = typer.Typer(no_args_is_help=True, help="Planners: how they did.")
planner.command()(compare)


@planner.callback()
def _planners() -> None:
    """Planners: how they did."""
