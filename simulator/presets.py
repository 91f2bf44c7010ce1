"""Ready-made applications. Names can be given to `weir replay --topology`."""

from collections.abc import Callable, Mapping

from .spec import Application, Link, OperatorSpec, SourceSpec

SOURCE = "Source: orders"
KEYS = 10_000.0


def chain(parallelism: int = 1, *, contention: float = 0.02) -> Application:
    """As the sample job: five vertices, nothing chained, totals per key in windows of a second."""
    return Application(
        operators=(
            OperatorSpec(
                name=SOURCE, service_seconds=20e-6, parallelism=parallelism, source=SourceSpec(topic="orders")
            ),
            OperatorSpec(name="parse", service_seconds=100e-6, parallelism=parallelism),
            OperatorSpec(
                name="enrich",
                service_seconds=2000e-6,
                contention=contention,
                parallelism=parallelism,
                state_bytes=KEYS * 256,
            ),
            OperatorSpec(
                name="aggregate",
                service_seconds=200e-6,
                parallelism=parallelism,
                window_seconds=1.0,
                window_keys=KEYS,
                state_bytes=KEYS * 64,
            ),
            OperatorSpec(name="sink: Writer", service_seconds=100e-6, parallelism=parallelism),
        ),
        links=(
            Link(source=SOURCE, target="parse"),
            Link(source="parse", target="enrich", ship="hash"),
            Link(source="enrich", target="aggregate", ship="hash"),
            Link(source="aggregate", target="sink: Writer"),
        ),
    )


def diamond(parallelism: int = 1) -> Application:
    """One source, two branches of different cost, joined again by key."""
    return Application(
        operators=(
            OperatorSpec(
                name=SOURCE, service_seconds=20e-6, parallelism=parallelism, source=SourceSpec(topic="orders")
            ),
            OperatorSpec(name="price", service_seconds=1000e-6, contention=0.02, parallelism=parallelism),
            OperatorSpec(
                name="fraud", service_seconds=3000e-6, contention=0.05, selectivity=0.4, parallelism=parallelism
            ),
            OperatorSpec(name="join", service_seconds=600e-6, parallelism=parallelism, state_bytes=50e6),
            OperatorSpec(name="sink: Writer", service_seconds=100e-6, parallelism=parallelism),
        ),
        links=(
            Link(source=SOURCE, target="price"),
            Link(source=SOURCE, target="fraud", share=0.5),
            Link(source="price", target="join", ship="hash"),
            Link(source="fraud", target="join", ship="hash"),
            Link(source="join", target="sink: Writer"),
        ),
    )


def two_sources(parallelism: int = 1) -> Application:
    """Orders joined with clicks, which are three times as many and cost less."""
    return Application(
        operators=(
            OperatorSpec(
                name=SOURCE,
                service_seconds=20e-6,
                parallelism=parallelism,
                source=SourceSpec(topic="orders", share=0.25),
            ),
            OperatorSpec(
                name="Source: clicks",
                service_seconds=20e-6,
                parallelism=parallelism,
                source=SourceSpec(topic="clicks", share=0.75, partitions=8),
            ),
            OperatorSpec(name="clean", service_seconds=300e-6, selectivity=0.3, parallelism=parallelism),
            OperatorSpec(
                name="join", service_seconds=1500e-6, contention=0.02, parallelism=parallelism, state_bytes=100e6
            ),
            OperatorSpec(name="sink: Writer", service_seconds=100e-6, parallelism=parallelism),
        ),
        links=(
            Link(source="Source: clicks", target="clean"),
            Link(source=SOURCE, target="join", ship="hash"),
            Link(source="clean", target="join", ship="hash"),
            Link(source="join", target="sink: Writer"),
        ),
    )


PRESETS: Mapping[str, Callable[[int], Application]] = {
    "chain": chain,
    "diamond": diamond,
    "two-sources": two_sources,
}
