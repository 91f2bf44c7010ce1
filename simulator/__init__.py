"""A deterministic model of a streaming application: hours in seconds, time an argument, chance from a seed."""

from .engine import Simulation
from .faults import Conditions, Fault, Noise
from .observe import Observer
from .presets import PRESETS, chain, diamond, two_sources
from .spec import Application, Cluster, InvalidApplication, Link, OperatorSpec, SourceSpec, parse
from .streams import StreamsSimulation
from .streams_spec import STREAMS_PRESETS, StreamsApplication, stateful, streams

__all__ = [
    "PRESETS",
    "STREAMS_PRESETS",
    "Application",
    "Cluster",
    "Conditions",
    "Fault",
    "InvalidApplication",
    "Link",
    "Noise",
    "Observer",
    "OperatorSpec",
    "Simulation",
    "SourceSpec",
    "StreamsApplication",
    "StreamsSimulation",
    "chain",
    "diamond",
    "parse",
    "stateful",
    "streams",
    "two_sources",
]
