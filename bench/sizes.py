"""Applications of several sizes: with a maximum of 8, 64 and 500 subtasks, and a source and keys whose steps are seen.

The source is as costly as the operator behind it, so that its partitions decide: of 12, 7 to 11 subtasks do what 6 do.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from weir_contracts import ScalingPolicy
from weir_replay.simulator import Application, Link, OperatorSpec, SourceSpec


@dataclass(frozen=True)
class Size:
    """An application with its policy's maximum and its highest load."""

    max_parallelism: int
    partitions: int
    key_groups: int
    peak_rate: float
    """Records/s: the source needs all partitions, or the largest useful number that the maximum allows."""

    def application(self) -> Application:
        """Return the application: a subtask of the source does 100 records/s, one of `work` 125 and a little less with
        each more."""
        operators = (
            OperatorSpec(
                name="Source: orders",
                service_seconds=10e-3,
                max_parallelism=max(self.key_groups, self.partitions),
                source=SourceSpec(topic="orders", partitions=self.partitions),
            ),
            OperatorSpec(name="work", service_seconds=8e-3, contention=0.0005, max_parallelism=self.key_groups),
            OperatorSpec(name="sink: Writer", service_seconds=100e-6, max_parallelism=self.key_groups),
        )
        links = (
            Link(source="Source: orders", target="work", ship="hash"),
            Link(source="work", target="sink: Writer"),
        )
        return Application(operators=operators, links=links).on(slots=self.max_parallelism)

    def bounded(self, policy: ScalingPolicy) -> ScalingPolicy:
        """Return the policy with this maximum."""
        bounds = policy.spec.bounds.model_copy(update={"max": self.max_parallelism})
        return policy.model_copy(update={"spec": policy.spec.model_copy(update={"bounds": bounds})})


SIZES: Mapping[str, Size] = {
    "stepped-8": Size(8, 12, 128, 540.0),
    "stepped-64": Size(64, 48, 128, 3000.0),
    "stepped-500": Size(500, 256, 512, 20_000.0),
}
"""By the topology's name."""
