"""Ready-made applications. Names can be given to `weir replay --topology`."""

from collections.abc import Callable, Mapping

from .spec import Application, Link, OperatorSpec, SourceSpec

SOURCE = "Source: orders"
KEYS = 10_000.0
_SINK = OperatorSpec(name="sink: Writer", service_seconds=100e-6)


def _source(name: str = SOURCE, topic: str = "orders", share: float = 1.0, partitions: int = 12) -> OperatorSpec:
    source = SourceSpec(topic=topic, share=share, partitions=partitions)
    return OperatorSpec(name=name, service_seconds=20e-6, source=source)


def _keyed(source: str, target: str) -> Link:
    return Link(source=source, target=target, ship="hash")


def chain(parallelism: int = 1, *, contention: float = 0.02) -> Application:
    """As the sample job: five vertices, nothing chained, totals per key in windows of a second."""
    operators = (
        _source(),
        OperatorSpec(name="parse", service_seconds=100e-6),
        OperatorSpec(name="enrich", service_seconds=2000e-6, contention=contention, state_bytes=KEYS * 256),
        OperatorSpec(
            name="aggregate", service_seconds=200e-6, window_seconds=1.0, window_keys=KEYS, state_bytes=KEYS * 64
        ),
        _SINK,
    )
    links = (
        Link(source=SOURCE, target="parse"),
        _keyed("parse", "enrich"),
        _keyed("enrich", "aggregate"),
        Link(source="aggregate", target=_SINK.name),
    )
    return Application(operators=operators, links=links).started_with(parallelism)


def diamond(parallelism: int = 1) -> Application:
    """One source, two branches of different cost, joined again by key."""
    operators = (
        _source(),
        OperatorSpec(name="price", service_seconds=1000e-6, contention=0.02),
        OperatorSpec(name="fraud", service_seconds=3000e-6, contention=0.05, selectivity=0.4),
        OperatorSpec(name="join", service_seconds=600e-6, state_bytes=50e6),
        _SINK,
    )
    links = (
        Link(source=SOURCE, target="price"),
        Link(source=SOURCE, target="fraud", share=0.5),
        _keyed("price", "join"),
        _keyed("fraud", "join"),
        Link(source="join", target=_SINK.name),
    )
    return Application(operators=operators, links=links).started_with(parallelism)


def two_sources(parallelism: int = 1) -> Application:
    """Orders joined with clicks, which are three times as many and cost less."""
    operators = (
        _source(share=0.25),
        _source("Source: clicks", "clicks", share=0.75, partitions=8),
        OperatorSpec(name="clean", service_seconds=300e-6, selectivity=0.3),
        OperatorSpec(name="join", service_seconds=1500e-6, contention=0.02, state_bytes=100e6),
        _SINK,
    )
    links = (
        Link(source="Source: clicks", target="clean"),
        _keyed(SOURCE, "join"),
        _keyed("clean", "join"),
        Link(source="join", target=_SINK.name),
    )
    return Application(operators=operators, links=links).started_with(parallelism)


PRESETS: Mapping[str, Callable[[int], Application]] = {"chain": chain, "diamond": diamond, "two-sources": two_sources}
