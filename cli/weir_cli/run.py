"""`weir run` and `weir demo`: all of Weir in this process, and what it would do on the screen."""

import math
from pathlib import Path
from typing import Annotated

import typer

from .client import InvalidInput, folder, seconds
from .completion import complete_installed_planner
from .output import Format, Output

Html = Annotated[
    Path | None,
    typer.Option(help="File for a page at the end: graph, lag, decisions. It needs nothing else to be read."),
]
LISTEN = "127.0.0.1:8080"
Listen = Annotated[str, typer.Option(help="Address of the API, host:port.")]


def run(
    files: Annotated[
        list[str] | None,
        typer.Option("--file", "-f", help="File with policies (YAML or JSON), or folder of such files; repeatable."),
    ] = None,
    flink: Annotated[
        str | None,
        typer.Option(help="Address of a JobManager: Weir finds its jobs and advises, without a policy."),
    ] = None,
    kafka: Annotated[
        str | None,
        typer.Option(
            help="Brokers as host:port, comma-separated: Weir finds their consumer groups and advises; with --flink those of "
            "the jobs' sources. WEIR_BROKER_CREDENTIALS_FILE has TLS and logins."
        ),
    ] = None,
    group: Annotated[
        str | None,
        typer.Option(help="With --kafka: the consumer group; without it all that have members, at most 100."),
    ] = None,
    kubernetes: Annotated[
        bool,
        typer.Option(
            "--kubernetes",
            help="Weir finds the Deployments and StatefulSets of a namespace and advises, through kubectl.",
        ),
    ] = False,
    namespace: Annotated[
        str | None,
        typer.Option("--namespace", "-n", help="With --kubernetes: the namespace; default: that of kubectl's context."),
    ] = None,
    data: Annotated[
        Path | None,
        typer.Option(
            parser=folder("--data"),
            metavar="PATH",
            help="Folder that keeps everything between two runs. By default nothing is kept.",
        ),
    ] = None,
    listen: Listen = LISTEN,
    once: Annotated[
        bool, typer.Option("--once", help="End after the time of --for, and print what was found then.")
    ] = False,
    duration: Annotated[
        float | None,
        typer.Option(
            "--for", parser=seconds("--for"), metavar="DURATION", help="Time to run, in seconds or such as 3m."
        ),
    ] = None,
    write: Annotated[
        Path | None,
        typer.Option(
            parser=folder("--write"),
            metavar="PATH",
            help="Folder to write the policies to that Weir would use, at the end.",
        ),
    ] = None,
    html: Html = None,
    output: Output = Format.TABLE,
) -> None:
    """Run all of Weir in one process: advice on your own jobs in a minute, without Kafka, Redis or Spark.

    It never changes an application without a policy in mode act. Ctrl-C ends it.
    """
    # Everything that a service imports: a second, which no other command needs.
    from .single_run import Options, run_single

    if duration is not None and not 0 <= duration < math.inf:
        raise InvalidInput("--for: must be a number of seconds from 0 on")
    if group is not None and kafka is None:
        raise InvalidInput("--group: needs --kafka, the brokers that know the group")
    if kubernetes and (flink is not None or kafka is not None):
        raise InvalidInput("--kubernetes: not together with --flink or --kafka: one process looks at one place")
    if namespace is not None and not kubernetes:
        raise InvalidInput("--namespace: needs --kubernetes")
    raise typer.Exit(
        run_single(
            Options(
                files=tuple(files or ()),
                flink=flink,
                kafka=kafka,
                group=group,
                kubernetes=kubernetes,
                namespace=namespace,
                data=data,
                listen=listen,
                once=once,
                seconds=duration,
                write=write,
                html=html,
                form=output,
            )
        )
    )


def demo(
    planner: Annotated[
        str,
        typer.Option(
            help="The planner that decides, such as rate, hpa or flink-autoscaler.",
            autocompletion=complete_installed_planner,
        ),
    ] = "rate",
    listen: Listen = LISTEN,
    html: Html = None,
) -> None:
    """Let Weir hold a simulated application through a day's load, in two minutes. Needs nothing but this program."""
    # Everything that the simulation imports: a second, which no other command needs.
    from .demo_run import run_demo

    raise typer.Exit(run_demo(planner, listen, html))
