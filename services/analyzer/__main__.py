"""Starts the analyzer: settings, adapters, stream."""

import asyncio
import sys

from runtime.clock import SystemClock
from runtime.health import Health, router
from runtime.http import application
from runtime.kafka_bus import KafkaBus
from runtime.loop import Stop
from runtime.service import run_service, wait_for_topics
from runtime.settings import load

from .adapters.kafka import Brokers
from .adapters.spark import SparkStream, SparkUnusable, connector_jars
from .service import Analyzer
from .settings import AnalyzerSettings


async def start(settings: AnalyzerSettings) -> int:
    """Compose and run until stopped; returns the exit code."""
    clock = SystemClock()
    bus = KafkaBus(settings.kafka_bootstrap_servers)
    stream = SparkStream(settings, Brokers(settings.kafka_bootstrap_servers), clock)
    analyzer = Analyzer(stream, clock)

    health = Health(clock)
    health.register("kafka", bus.ping)
    health.register("spark", analyzer.ping)
    app = application("Weir analyzer", "Understands observations: rates, capacities, lag, symptoms.")
    app.include_router(router(health))

    async def run(stop: Stop) -> None:
        if await wait_for_topics(bus, settings.partitions, stop, health):
            await analyzer.run(stop)

    return await run_service("analyzer", settings, app=app, tasks={"analyzer": run}, on_stopped=bus.close)


def main() -> None:
    """The entry point."""
    settings = load(AnalyzerSettings, sys.argv[1:])
    try:
        connector_jars(settings.jars)
    except SparkUnusable as error:
        sys.stderr.write(f"analyzer: {error}\n")
        sys.exit(2)
    sys.exit(asyncio.run(start(settings)))


if __name__ == "__main__":
    main()
