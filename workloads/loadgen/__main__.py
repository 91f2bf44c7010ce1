"""`python -m workloads.loadgen --bootstrap HOST:PORT --topic orders --trace step --peak-rate 2400 --port 8090`"""

import argparse
import socket
import sys
import threading
import time
from collections.abc import Sequence

import uvicorn

from weir_replay.trace import InvalidTrace, LoadTrace, Shape, Step, default_speedup, named
from weir_runtime.origins import SameOrigin

from .control import WorkloadBoard, create_app
from .generator import DEFAULT_KEYS, Generator, run
from .load import Load, LoadChange
from .output import KafkaOutput, OutputError, PairedOutput

BROKER_TIMEOUT_SECONDS = 30.0
GRACE_SECONDS = 3


def _arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m workloads.loadgen", description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument("--bootstrap", required=True, help="Kafka's bootstrap servers")
    parser.add_argument("--topic", required=True, help="topic to write to")
    parser.add_argument("--payments-topic", help="write a payment for each order to this topic (Kafka Streams sample)")
    parser.add_argument("--partitions", type=int, help="create missing topics with this many")
    parser.add_argument("--trace", default="step", help="step, sine, spike, a bundled recording's stem or a CSV file")
    parser.add_argument("--levels", help="levels of the step trace as seconds:level,… (its default: 0:1,40:3)")
    parser.add_argument("--peak-rate", type=float, default=2400.0, help="records/s at the trace's highest point")
    parser.add_argument("--speedup", type=float, help="how much faster than recorded (shapes: 1, recordings: 120)")
    parser.add_argument("--start-at", type=float, default=0.0, help="second of the trace to begin at")
    parser.add_argument("--paused", action="store_true", help='start paused, until PUT /load {"paused": false}')
    parser.add_argument("--keys", type=int, default=DEFAULT_KEYS, help="number of keys")
    parser.add_argument("--key-skew", type=float, help="Zipf's exponent; 0 is uniform (default: the trace's, else 0)")
    parser.add_argument("--record-bytes", type=int, help="size of a record's value (default: the trace's, else 160)")
    parser.add_argument("--seed", type=int, default=1, help="of keys and payloads")
    parser.add_argument("--port", type=int, default=8090, help="of the control API, on 127.0.0.1")
    options = parser.parse_args(arguments)
    if not 1 <= options.keys <= 1_000_000:
        parser.error("argument --keys: must lie between 1 and 1000000")
    if options.partitions is not None and not 1 <= options.partitions <= 10_000:
        parser.error("argument --partitions: must lie between 1 and 10000")
    if options.payments_topic == options.topic:
        parser.error("argument --payments-topic: must differ from --topic")
    if not 1 <= options.port <= 65_535:
        parser.error("argument --port: must lie between 1 and 65535")
    try:
        options.load = _load(options)
    except InvalidTrace as error:
        parser.error(f"argument --trace: {error}")
    except ValueError as error:
        # LoadChange has the bounds, as over HTTP: report the first field outside.
        field, message = error.errors()[0]["loc"][0], error.errors()[0]["msg"]  # type: ignore[attr-defined]
        parser.error(f"argument --{str(field).replace('_', '-')}: {message}")
    return options


def _shape(options: argparse.Namespace) -> Shape:
    if options.levels is None:
        return named(options.trace)
    if options.trace != "step":
        raise InvalidTrace(f"levels are for the step trace, not for {options.trace}")
    return Step.parse(options.levels)


def _load(options: argparse.Namespace) -> Load:
    shape = _shape(options)
    speedup = default_speedup(shape) if options.speedup is None else options.speedup
    trace = LoadTrace(shape, options.peak_rate, speedup, options.start_at)
    change = LoadChange(paused=options.paused, key_skew=options.key_skew, record_bytes=options.record_bytes)
    return Load(trace).changed(change)


def _listener(port: int) -> socket.socket:
    """Bind first, so that a port in use is an error and not a half-started generator."""
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(("127.0.0.1", port))
    except OSError:
        listener.close()
        raise
    return listener


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the generator; returns 0 after SIGTERM or SIGINT, 1 if producing failed, 2 for wrong arguments.

    A port in use counts as a wrong argument.
    """
    options = _arguments(arguments)
    try:
        listener = _listener(options.port)
    except OSError as error:
        sys.stderr.write(f"loadgen: cannot listen on 127.0.0.1:{options.port}: {error.strerror}\n")
        return 2
    with listener:
        return _generate(options, listener)


def control_server(generator: Generator) -> uvicorn.Server:
    """Return a server of the control API, not yet running."""
    app = SameOrigin(create_app(generator, WorkloadBoard()))
    return uvicorn.Server(uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=GRACE_SECONDS))


def _generate(options: argparse.Namespace, listener: socket.socket) -> int:
    paired = options.payments_topic
    output = (
        PairedOutput(options.bootstrap, options.topic, paired)
        if paired
        else KafkaOutput(options.bootstrap, options.topic)
    )
    try:
        output.wait_topic(BROKER_TIMEOUT_SECONDS, options.partitions)
    except OutputError as error:
        sys.stderr.write(f"loadgen: {error}\n")
        return 1
    generator = Generator(options.load, output, keys=options.keys, seed=options.seed, now_seconds=time.monotonic())
    stop, failed = threading.Event(), threading.Event()
    server = control_server(generator)

    def produce() -> None:
        try:
            run(generator, stop, monotonic=time.monotonic, wall=time.time)
        except BaseException:
            failed.set()
            server.should_exit = True
            raise

    thread = threading.Thread(target=produce, name="generator", daemon=True)
    thread.start()
    try:
        server.run(sockets=[listener])
    finally:
        stop.set()
        thread.join(GRACE_SECONDS)
        generator.close(GRACE_SECONDS)
    return 1 if failed.is_set() or not server.started else 0


if __name__ == "__main__":
    sys.exit(main())
