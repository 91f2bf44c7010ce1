"""The `weir` command, which is `kubectl weir` as well."""


def main() -> None:
    """Run the command. The script of this name imports no more than this: each process of planners imports it again."""
    from .__main__ import main as run

    run()


def complete_for_kubectl() -> None:
    """Complete `kubectl weir …`: kubectl runs the program `kubectl_complete-weir` with the words of the line."""
    from .completion import for_kubectl

    for_kubectl()
