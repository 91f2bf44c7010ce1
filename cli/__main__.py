"""The `weir` command."""

import typer

from .trial.command import trial

app = typer.Typer(no_args_is_help=True, add_completion=False, help="Weir, an autoscaler for stream processing.")
app.command()(trial)


@app.callback()
def _root() -> None:
    """Weir holds a streaming application's freshness at its objective with as little parallelism as that takes."""


def main() -> None:
    app()


if __name__ == "__main__":
    main()
