"""The `weir` command."""


def main() -> None:
    """Run the command. The script of this name imports no more than this: each process of planners imports it again."""
    from .__main__ import main as run

    run()
