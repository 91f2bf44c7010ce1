"""Starts the analyzer: settings, adapters, lease, stream."""

import asyncio
import os
import platform
import sys

from weir_runtime.clock import SystemClock
from weir_runtime.http import application
from weir_runtime.lease import KafkaLease
from weir_runtime.loop import Stop
from weir_runtime.service import Health, health_router, run_service, wait_for_topics
from weir_runtime.settings import EXIT_BAD_SETTINGS, load

from .adapters.session import SparkUnusable, connector_jars
from .adapters.spark import Brokers, SparkStream
from .service import Analyzer
from .settings import AnalyzerSettings


async def start(settings: AnalyzerSettings) -> int:
    """Compose and run until stopped or refused; returns the exit code."""
    clock = SystemClock()
    bus = settings.bus(clock)
    stream = SparkStream(settings, Brokers(settings.kafka_bootstrap_servers, settings.kafka_security), clock)
    who = f"{platform.node()}, process {os.getpid()}"
    lease = KafkaLease(settings.kafka_bootstrap_servers, clock, settings.terms(), who, security=settings.kafka_security)
    analyzer = Analyzer(stream, lease, clock, settings.terms())

    health = Health(clock)
    health.register("kafka", bus.ping)
    health.register("spark", analyzer.ping)
    app = application("Weir analyzer", "Understands observations: rates, capacities, lag, symptoms.")
    app.include_router(health_router(health))

    async def run(stop: Stop) -> None:
        if await wait_for_topics(bus, settings, stop, health):
            await analyzer.run(stop)

    code = await run_service("analyzer", settings, app=app, tasks={"analyzer": run}, on_stopped=bus.close)
    if analyzer.refused is None:
        return code
    sys.stderr.write(f"analyzer: {analyzer.refused}\n")
    return EXIT_BAD_SETTINGS


def main() -> None:
    """The entry point."""
    settings = load(AnalyzerSettings, sys.argv[1:])
    try:
        connector_jars(settings.jars)
    except SparkUnusable as error:
        sys.stderr.write(f"analyzer: {error}\n")
        sys.exit(EXIT_BAD_SETTINGS)
    sys.exit(asyncio.run(start(settings)))


if __name__ == "__main__":
    main()
