"""Records the requests that `weir_sdk.testing` ships: `python sdk/record.py`, from the project's root."""

import json
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from weir_contracts import PlanReply, PlanRequest, parse_policy
from weir_replay.loop import Loop
from weir_replay.simulator import PRESETS, Fault, Noise, Simulation
from weir_sdk.installed import ask

FOLDER = Path(__file__).parent / "weir_sdk" / "testing" / "data"
KEPT = {"observations": 3, "history": 5, "outcomes": 2}
"""Of the large parts: enough to see what they are."""


POLICY = {
    "apiVersion": "weir.dev/v1alpha1",
    "kind": "ScalingPolicy",
    "metadata": {"namespace": "shop", "name": "orders", "version": 1},
    "spec": {
        "application": {"flink": {"url": "http://jobmanager:8081", "job": "orders"}},
        "signals": {"kafka": {"bootstrapServers": "kafka:9092", "groupId": "orders"}},
        "objective": {"maxLag": "30s"},
        "bounds": {"max": 16},
        "interval": "10s",
        "mode": "act",
    },
}


@dataclass(frozen=True)
class Scene:
    """A loop that runs for `seconds` at a load in records/s, which changes to `then` for its last `last_seconds`."""

    seconds: float
    rate: float
    then: float | None = None
    last_seconds: float = 40.0
    preset: str = "chain"
    start: int = 2
    fault: Fault | None = None
    wanted: Callable[[PlanRequest], bool] = lambda _request: True
    """The last request of this kind is taken."""

    def request(self) -> PlanRequest:
        since, then = self.seconds - self.last_seconds, self.then
        rate = (lambda t: self.rate) if then is None else (lambda t: self.rate if t < since else then)
        recorded: list[PlanRequest] = []

        def asks(request: PlanRequest, name: str) -> PlanReply:
            recorded.append(request)
            return ask(request, name)

        faults = [] if self.fault is None else [self.fault]
        simulation = Simulation(PRESETS[self.preset](self.start), rate)
        with closing(Loop(asks=asks)) as loop:
            loop.add(simulation, parse_policy(POLICY), noise=Noise(relative=0.02), faults=faults, seed=1)
            loop.run(self.seconds)
        return [request for request in recorded if self.wanted(request)][-1]


SCENES = {
    "warming-up": Scene(20, 600),
    "steady": Scene(600, 600),
    "overloaded": Scene(
        600, 600, then=2400, wanted=lambda r: r.deployment.observed["enrich"] == 2 and not r.analysis.has("restarting")
    ),
    "catching-up": Scene(700, 600, then=2400, last_seconds=200, wanted=lambda r: r.analysis.has("catching-up")),
    "over-provisioned": Scene(
        600, 600, start=8, last_seconds=60, wanted=lambda r: r.deployment.observed["enrich"] == 8
    ),
    "metric-missing": Scene(600, 600, fault=Fault("brokers-away", since_seconds=500)),
    "diamond": Scene(600, 400, preset="diamond"),
    "two-sources": Scene(600, 400, preset="two-sources"),
}


def main() -> None:
    """Write a file for each scene."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name, scene in SCENES.items():
        document = scene.request().model_dump(mode="json", by_alias=True, exclude_unset=True)
        document["analysis"].pop("learned", None)
        for field, count in KEPT.items():
            newest_last = field == "observations"
            document[field] = document.get(field, [])[-count:] if newest_last else document.get(field, [])[:count]
        document["state"]["recommendations"] = document["state"].get("recommendations", [])[-3:]
        text = json.dumps(rounded(document), indent=1) + "\n"
        (FOLDER / f"{name}.json").write_text(text)


def rounded(value: Any) -> Any:
    """Six digits are enough of a number."""
    if isinstance(value, float):
        return float(f"{value:.6g}")
    if isinstance(value, dict):
        return {key: rounded(each) for key, each in value.items()}
    return [rounded(each) for each in value] if isinstance(value, list) else value


if __name__ == "__main__":
    main()
