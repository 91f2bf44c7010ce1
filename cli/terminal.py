"""The screen that commands print to."""

from typing import Any

from rich.console import Console


def terminal(**options: Any) -> Console:
    """Words of applications, planners and engines go to it as they are: brackets and colons in them are no markup."""
    return Console(markup=False, emoji=False, **options)
