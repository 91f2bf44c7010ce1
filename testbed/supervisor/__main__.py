"""`python -m testbed.supervisor --bootstrap HOST:PORT --replicas 2 --port 8070`: instances of the Kafka Streams sample.

`GET` and `PUT /scale/orders` read and set their number. SIGTERM ends all of them.
"""

import argparse
import asyncio
import re
import socket
import sys
import threading
from collections.abc import Sequence
from dataclasses import MISSING, fields
from pathlib import Path

from fastapi import FastAPI

from testbed.jars import class_path, jmx_exporter_jar
from testbed.process import TestbedError
from testbed.streams import LOOPBACK, StreamsInstance, StreamsSettings, listening
from weir_runtime.access import read_tokens
from weir_runtime.http import PortInUse, listen, serve
from weir_runtime.loop import Stop

from .api import create_app
from .fleet import Fleet

DEFAULT_PORT = 8070
MAX_REPLICAS = 100
_DEFAULTS = {each.name: each.default for each in fields(StreamsSettings) if each.default is not MISSING}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m testbed.supervisor", description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument("--bootstrap", dest="bootstrap_servers", required=True, help="Kafka's bootstrap servers")
    parser.add_argument("--replicas", type=int, default=1, help="number of instances to begin with")
    parser.add_argument("--max-replicas", type=int, default=12, help="most instances that this machine is to run")
    parser.add_argument("--port", type=int, default=DEFAULT_PORT, help="of the API")
    parser.add_argument(
        "--host",
        default=LOOPBACK,
        help="name by which others reach this machine; any other than the default has API and metrics listen everywhere, which "
        "is for a network of its own",
    )
    parser.add_argument("--folder", type=Path, default=Path("runs/supervisor"), help="for logs and state")
    parser.add_argument("--tokens-file", type=Path, help="who may read and scale, as WEIR_TOKENS_FILE of the services")
    for name, kind, text in (
        ("application_id", str, "application.id, and the name in the address"),
        ("orders_topic", str, "input topic"),
        ("payments_topic", str, "input topic that is joined with it"),
        ("output_topic", str, "topic of the results"),
        ("threads", int, "stream threads of an instance"),
        ("commit_interval_millis", int, "commit.interval.ms"),
        ("session_timeout_millis", int, "session.timeout.ms"),
        ("standby_replicas", int, "num.standby.replicas"),
        ("service_time_micros", float, "time an order takes, in microseconds"),
        ("state_bytes", int, "size of a customer's state"),
        ("control_url", str, "load generator's /workload, for another service time while it runs"),
        ("properties", Path, "file with further settings of Kafka Streams"),
        ("heap_megabytes", int, "Java heap of an instance"),
    ):
        option = "--" + name.replace("_millis", "_ms").replace("_micros", "_us").replace("_", "-")
        parser.add_argument(option, dest=name, type=kind, default=_DEFAULTS[name], help=text)
    return parser


def _arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = _parser()
    options = parser.parse_args(arguments)
    if not 1 <= options.max_replicas <= MAX_REPLICAS:
        parser.error(f"argument --max-replicas: must lie between 1 and {MAX_REPLICAS}")
    if not 0 <= options.replicas <= options.max_replicas:
        parser.error("argument --replicas: must lie between 0 and --max-replicas")
    if not 1 <= options.port <= 65_535:
        parser.error("argument --port: must lie between 1 and 65535")
    if re.fullmatch(r"[a-zA-Z0-9.-]{1,253}", options.host) is None:
        parser.error("argument --host: must be a name or an IPv4 address")
    if re.fullmatch(r"[a-zA-Z0-9._-]{1,100}", options.application_id) is None:
        parser.error("argument --application-id: must be 1 to 100 letters, digits, dots, dashes or underscores")
    try:
        options.tokens = read_tokens(options.tokens_file)
    except ValueError as error:
        parser.error(f"argument --tokens-file: {error}")
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the supervisor; returns 0 after SIGTERM or SIGINT, 1 if the jars are missing, 2 for wrong arguments or a port
    in use."""
    options = _arguments(arguments)
    settings = StreamsSettings(**{each.name: getattr(options, each.name) for each in fields(StreamsSettings)})
    try:
        class_path("kafka-streams")
        jmx_exporter_jar()
        bound = listen(listening(options.host), options.port)
    except (TestbedError, PortInUse) as error:
        remedy = ": set --port to a free one" if isinstance(error, PortInUse) else ""
        sys.stderr.write(f"supervisor: {error}{remedy}\n")
        return 2 if isinstance(error, PortInUse) else 1

    def make(ordinal: int) -> StreamsInstance:
        return StreamsInstance(settings, ordinal, options.folder, options.host)

    fleet = Fleet(make, options.replicas, report=_print)
    app = create_app(fleet, settings.application_id, options.max_replicas, options.tokens)
    asyncio.run(_serve(fleet, app, bound, options.host))
    return 0


async def _serve(fleet: Fleet, app: FastAPI, bound: socket.socket, host: str) -> None:
    stop, ended = Stop(), threading.Event()
    stop.on_signals()
    running = asyncio.create_task(asyncio.to_thread(fleet.run, ended))
    running.add_done_callback(lambda _: stop.request("the supervisor's thread has ended"))
    try:
        await serve(app, bound, stop, allowed_hosts=[host])
    finally:
        ended.set()
        await running


def _print(sentence: str) -> None:
    sys.stdout.write(f"supervisor: {sentence}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
