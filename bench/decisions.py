"""Records decisions and checks that a change of the code leaves them as they are.

    python -m bench.decisions record FILE     5,000 observations and 5,000 plan requests from replays, with their analyses
                                              and plans
    python -m bench.decisions compare FILE    the same inputs through the present cores; prints each difference, exits 1
                                              if there is one

The replays cover every built-in planner, topology and load of `python -m bench planners` with fixed seeds. Analyses,
parallelisms, codes and amendments are compared; sentences may differ.
"""

import argparse
import gzip
import json
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

from bench.simulated import SCENARIOS, Situation, prepared
from weir_analyzer.core import AnalysisSettings, advance
from weir_contracts import Analysis, Observation, Plan, PlanRequest, PlanState
from weir_engines.flink.topology import health_of
from weir_planner.core.decide import plan_offline
from weir_replay.loop import Loop
from weir_replay.recorded import comparable, differences
from weir_replay.simulator import Noise, Simulation
from weir_sdk.installed import built_in, needed

RECORDS = 5000
SECONDS = 1800.0
OBSERVED = ("rate", "hpa")
"""Planners whose replays' observations are kept, all of them: the analyzer's state grows from the first one on."""
MAX_SHOWN = 20


class Recorder:
    """Keeps what a replay's analyzer and planner were given: all observations, and every `every`-th request."""

    def __init__(self, every: int) -> None:
        self.loop = Loop(carry=self._carry)
        self.observations: list[dict[str, Any]] = []
        self.requests: list[dict[str, Any]] = []
        self._every = every
        self._analysis: Analysis | None = None
        self._planned = 0

    def _carry(self, message: Any) -> Any:
        if isinstance(message, Observation):
            self.observations.append(message.model_dump(mode="json", exclude_unset=True))
        elif isinstance(message, Analysis):
            self._analysis = message
        elif isinstance(message, Plan) and self._analysis is not None:
            self._planned += 1
            if self._planned % self._every == 0:
                # The planner's memory does not have this plan before it is published.
                cache, name = self.loop.request_cache, message.planner
                request = needed(cache.request(self._analysis, message.created_at), name)
                self.requests.append(_record(request, cache.state(message.application, name), name, message))
        return message


def _record(request: PlanRequest, state: PlanState, name: str, plan: Plan) -> dict[str, Any]:
    return {
        "planner": name,
        "request": request.model_dump(mode="json", exclude_unset=True),
        "state": state.model_dump(mode="json", exclude_unset=True),
        "plan": comparable(plan.model_dump(mode="json")),
    }


RENAMED = {"least_processing_rate": "min_processing_rate", "utilisation": "utilization"}
"""Parts of fields, codes and parameters by their names in earlier recordings."""


def replays() -> Iterator[tuple[int, Situation, str]]:
    """Seeds, situations and planners, so mixed that a part of them covers all of each."""
    for seed, situation in enumerate(SCENARIOS["planners"].situations()):
        for planner in built_in():
            yield seed, situation, planner


def record(path: Path) -> int:
    """Write the records; returns the exit code."""
    runs = list(replays())
    each = RECORDS // len(runs) + 1
    with gzip.open(path, "wt", compresslevel=4) as out:
        for number, (seed, situation, planner) in enumerate(runs):
            replay = prepared(SCENARIOS["planners"], situation, planner, SECONDS)
            simulation = Simulation(replay.job, replay.trace.rate_at, step_seconds=replay.step_seconds)
            recorder = Recorder(int(SECONDS / replay.policy.spec.interval.total_seconds()) // each)
            with closing(recorder.loop) as loop:
                loop.add(simulation, replay.policy, noise=Noise(relative=0.02), seed=seed)
                loop.run(SECONDS)
            observed = recorder.observations if planner in OBSERVED else []
            analyses = [None if a is None else comparable(a) for a in _analyses(observed)]
            document = {"run": f"{situation.trace} on {situation.topology} under {planner}", "observations": observed}
            out.write(json.dumps({**document, "analyses": analyses, "requests": recorder.requests}) + "\n")
            print(f"{number + 1}/{len(runs)} {document['run']}: {len(observed)}, {len(recorder.requests)}", flush=True)
    return 0


def _analyses(observations: list[dict[str, Any]]) -> Iterator[dict[str, Any] | None]:
    state: Any = None
    for document in observations:
        state, analysis = advance(state, Observation.model_validate(_with_health(document)), AnalysisSettings())
        yield None if analysis is None else analysis.model_dump(mode="json")


def _renamed(line: str) -> str:
    for earlier, name in RENAMED.items():
        line = line.replace(earlier, name)
    return line


def _with_health(document: dict[str, Any]) -> dict[str, Any]:
    """Return a message recorded before deployments had a health with that of its state."""
    deployment = document.get("deployment")
    if deployment is not None and deployment.get("health") is None:
        deployment["health"] = health_of(deployment["state"])
    return document


def _plan_of(recorded: dict[str, Any]) -> dict[str, Any]:
    request = PlanRequest.model_validate({**_with_health(recorded["request"]), "state": recorded["state"]})
    return plan_offline(request, recorded["planner"]).model_dump(mode="json")


def compare(path: Path) -> int:
    """Print what differs; returns the exit code."""
    counts = {"analyses": 0, "plans": 0}
    found: list[str] = []
    with gzip.open(path, "rt") as lines:
        for line in lines:
            run = json.loads(_renamed(line))
            for number, (before, now) in enumerate(zip(run["analyses"], _analyses(run["observations"]), strict=True)):
                counts["analyses"] += 1
                found += differences(f"{run['run']}, analysis {number}", comparable(before), comparable(now))
            for number, recorded in enumerate(run["requests"]):
                counts["plans"] += 1
                found += differences(
                    f"{run['run']}, plan {number}", comparable(recorded["plan"]), comparable(_plan_of(recorded))
                )
    for each in found[:MAX_SHOWN]:
        print(each)
    print(f"{counts['analyses']} analyses, {counts['plans']} plans, {len(found)} differences")
    return 1 if found else 0


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=("record", "compare"))
    parser.add_argument("file", type=Path)
    arguments = parser.parse_args()
    chosen: Callable[[Path], int] = {"record": record, "compare": compare}[arguments.command]
    return chosen(arguments.file)


if __name__ == "__main__":
    sys.exit(main())
