"""`weir planner …`: the group of commands about planners."""

import typer

from .planner_compare import compare
from .planner_new import new_command
from .planner_registry import check, list_planners, register, remove

planner = typer.Typer(no_args_is_help=True, help="Planners: write, register, check and compare them.")
planner.command()(compare)
planner.command(name="new")(new_command)
planner.command()(register)
planner.command(name="list")(list_planners)
planner.command()(check)
planner.command()(remove)


@planner.callback()
def _planners() -> None:
    """Planners: write, register, check and compare them."""
