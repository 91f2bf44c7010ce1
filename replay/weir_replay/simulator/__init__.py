"""A deterministic model of a streaming application: hours in seconds, time an argument, chance from a seed."""

from .flink import Simulation as Simulation
from .observe import Observer as Observer
from .spec import PRESETS as PRESETS
from .spec import Application as Application
from .spec import InvalidApplication as InvalidApplication
from .spec import Link as Link
from .spec import OperatorSpec as OperatorSpec
from .spec import SourceSpec as SourceSpec
from .spec import chain as chain
from .spec import diamond as diamond
from .spec import parse as parse
from .spec import two_sources as two_sources
from .streams import StreamsSimulation as StreamsSimulation
from .streams_spec import STREAMS_PRESETS as STREAMS_PRESETS
from .streams_spec import StreamsApplication as StreamsApplication
from .streams_spec import stateful as stateful
from .streams_spec import streams as streams
from .world import Fault as Fault
from .world import Noise as Noise
