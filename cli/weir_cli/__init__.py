"""The `weir` command, which is `kubectl weir` as well."""


def main() -> None:
    """Run the command. The script of this name imports no more than this: each process of planners imports it again."""
    import signal

    before = signal.getsignal(signal.SIGINT)
    if before is signal.default_int_handler:
        # Ctrl-C while modules are imported ends the process without a traceback: there is nothing to clean up yet.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from .__main__ import main as run

    signal.signal(signal.SIGINT, before)
    run()


def complete_for_kubectl() -> None:
    """Complete `kubectl weir …`: kubectl runs the program `kubectl_complete-weir` with the words of the line."""
    from .completion import for_kubectl

    for_kubectl()
