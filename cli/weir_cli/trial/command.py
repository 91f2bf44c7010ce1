"""`weir trial`: its options."""

from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from weir_cli.client import seconds
from weir_cli.errors import InvalidInput
from weir_cli.terminal import terminal


def trial(
    workload: Annotated[
        str, typer.Option(help="flink: a Flink job. kafka-streams: instances of a Kafka Streams application.")
    ] = "flink",
    duration: Annotated[
        float | None,
        typer.Option(
            parser=seconds("--duration"),
            metavar="DURATION",
            help="Time to run, in seconds or such as 10m; default: until Ctrl-C.",
        ),
    ] = None,
    trace: Annotated[
        str, typer.Option(help="step, sine, spike, the name of a bundled recording, or a CSV file (timestamp,value).")
    ] = "step",
    mode: Annotated[
        str | None,
        typer.Option(help="act: rescale the job. advise: only publish decisions. By default the policy's, else act."),
    ] = None,
    report: Annotated[Path | None, typer.Option(help="Also write the report (JSON) to this file.")] = None,
    speedup: Annotated[
        float | None, typer.Option(help="Replay a recording this many times faster than recorded; default: 120.")
    ] = None,
    peak_rate: Annotated[
        float | None, typer.Option(help="Records/s at the trace's highest point; default: 2400, Kafka Streams 900.")
    ] = None,
    planner: Annotated[
        str | None, typer.Option(help="The planner that decides. By default the policy's, else rate.")
    ] = None,
    policy: Annotated[
        Path | None,
        typer.Option(help="Policy file, used with the trial's addresses; --mode and --planner override it."),
    ] = None,
    external_flink: Annotated[
        str | None, typer.Option(help="Run the job on this cluster (REST address) instead of starting one.")
    ] = None,
    port: Annotated[int, typer.Option(help="Port of the API.")] = 8080,
) -> None:
    """Run the complete loop on this machine: Kafka, Redis, the five services, a real application and its load.

    Exit codes: 0 at least one rescale was verified and the job is within its objective at the end (by an independent
    probe); 1 not, or a part failed; 2 the trial cannot start with these options; 130 interrupted.
    """
    if find_spec("testbed") is None:
        raise InvalidInput(
            "a trial starts the real parts and the sample applications, which are not installed: run it in a clone of the project"
        )
    # The parts it starts are a second of imports, which no other command needs.
    from testbed.trial.options import PEAK_RATES, TrialOptions

    from .run import run_trial

    options = TrialOptions(
        workload=workload,
        duration_seconds=duration,
        trace=trace,
        mode=mode,
        report=report,
        speedup=speedup,
        peak_rate=PEAK_RATES.get(workload, 0.0) if peak_rate is None else peak_rate,
        planner=planner,
        policy_file=policy,
        external_flink=external_flink,
        port=port,
    )
    raise typer.Exit(run_trial(options, terminal()))
