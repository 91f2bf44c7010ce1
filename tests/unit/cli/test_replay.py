"""`weir replay`: the loop's cores on a simulated application, and what is printed of it."""

import asyncio
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from weir_contracts import Objective, Target

from cli.errors import InvalidInput
from cli.replay.command import run
from cli.replay.driver import SimulatedDriver
from cli.replay.loop import Loop
from cli.replay.options import ReplayOptions, prepare
from cli.replay.score import Meter
from services.executor.core import Accepted, Snapshot, Unanswered
from services.planner.core.planners import PLANNERS
from simulator import Noise, Simulation, chain
from simulator.clairvoyant import Clairvoyant
from simulator.observe import START, Observer
from tests.unit.cli.test_command import Done, weir
from tests.unit.executor.driver_suite import DriverSuite


def policy_for(trace: str = "step") -> ReplayOptions:
    return ReplayOptions(trace=trace, interval_seconds=5)


def test_the_load_triples_and_is_answered() -> None:
    """One rescale, verified, in time: lag stays below the objective but for what a restart takes."""
    prepared = prepare(policy_for())
    simulation = Simulation(prepared.application, prepared.trace.rate_at, step_seconds=1.0)
    loop = Loop(simulation, prepared.policy, noise=Noise(relative=0.02))
    before = dict(simulation.observed)
    asyncio.run(loop.run(180))
    assert loop.said.rescales == 1
    assert loop.said.ends == {"verified": 1}
    assert simulation.observed["enrich"] > before["enrich"]
    assert simulation.lag_seconds < 5
    assert loop.knowledge.plan is not None and loop.knowledge.plan == loop.said.plans[-1]


def test_the_same_seed_gives_the_same_decisions() -> None:
    """Down to the plans' ids."""

    def plans(seed: int) -> list[str]:
        prepared = prepare(policy_for())
        simulation = Simulation(prepared.application, prepared.trace.rate_at, step_seconds=1.0)
        loop = Loop(simulation, prepared.policy, noise=Noise(relative=0.1), seed=seed)
        asyncio.run(loop.run(75))
        return [plan.model_dump_json() for plan in loop.said.plans]

    assert plans(1) == plans(1)
    assert plans(1) != plans(2)


def test_a_lost_answer_costs_nothing() -> None:
    """The request came through, and is found to have."""
    prepared = prepare(policy_for())
    simulation = Simulation(prepared.application, prepared.trace.rate_at, step_seconds=1.0)
    simulation.conditions.lost_answers = 1
    loop = Loop(simulation, prepared.policy)
    asyncio.run(loop.run(120))
    assert (loop.said.rescales, loop.said.ends) == (1, {"verified": 1})


def replayed(*arguments: str) -> Done:
    return weir("replay", "--trace", "step", "--duration", "90", *arguments)


def test_the_score_is_printed_for_people(tmp_path: Path) -> None:
    """With curves, and as a picture."""
    picture = tmp_path / "replay.svg"
    done = replayed("--plot", str(picture))
    assert done.returncode == 0, done.stderr
    assert "violation" in done.stdout and "slot-seconds" in done.stdout and "rescales" in done.stdout
    assert "largest lag" in done.stdout and "⣀" in done.stdout
    drawn = picture.read_text()
    assert drawn.startswith("<svg")
    assert "@font-face" not in drawn, "a picture that fetches something is not whole"


def test_the_score_is_printed_for_programs() -> None:
    """The same figures with their units in their names; slot-seconds are never below the least."""
    done = replayed("-o", "json", "--topology", "two-sources", "--seed", "3")
    found = json.loads(done.stdout)
    score = found["score"]
    assert score["seconds"] == 90
    assert score["slot_seconds"] >= score["least_slot_seconds"] > 0
    assert 0 <= score["violation_share"] <= 1
    assert sum(found["plans"].values()) == 9
    assert [point["at_seconds"] for point in found["points"]] == [10.0 * i for i in range(9)]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--trace", "nowhere"], "--trace: trace 'nowhere' is none of"),
        (["--planner", "oracle"], "--planner: there is no planner 'oracle'"),
        (["--topology", "square"], "--topology: square: cannot be read"),
        (["--policy", "/nowhere.yaml"], "--policy: /nowhere.yaml: cannot be read"),
        (["--interval", "0.1"], "--interval: must lie between 1 and 600 seconds"),
        (["--interval", "nan"], "--interval: must lie between 1 and 600 seconds"),
        (["--peak-rate", "-1"], "--trace: peak_rate"),
        (["--peak-rate", "1e308"], "--trace: peak_rate: must be above 0 and at most 1e+12"),
        (["--speedup", "1e308"], "--trace: speedup: must be above 0 and at most 1e+06"),
        (["--plot", "/nowhere/picture.svg"], "there is no folder /nowhere"),
        (["--duration", "1"], "--duration: must lie between"),
        (["--plot", "picture.png"], "only .svg"),
        (["--noise", "2"], "--noise: must lie between 0 and 1"),
        (["-o", "xml"], "--output: 'xml'"),
    ],
)
def test_what_cannot_be_done_is_told_in_a_line(arguments: list[str], told: str) -> None:
    """The option and what is wrong with it; exit code 2."""
    given = arguments if "--trace" in arguments else ["--trace", "step", *arguments]
    done = weir("replay", *given)
    assert done.returncode == 2
    assert told in done.stderr
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize("option", ["--topology", "--policy"])
@pytest.mark.parametrize("text", ["name: 2020-13-45\n", "a: 0b_\n", "[" * 1500], ids=["no date", "no number", "nested"])
def test_what_looks_like_yaml_and_is_none_is_told_in_a_line(option: str, text: str, tmp_path: Path) -> None:
    """A date of month 13, half a number, lists in lists in lists."""
    file = tmp_path / "odd.yaml"
    file.write_text(text)
    done = weir("replay", "--trace", "step", option, str(file))
    assert done.returncode == 2
    assert str(file) in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_a_bound_on_latency_is_scored_by_latency() -> None:
    """The same run under a bound that lag keeps and the time in queues does not."""
    scores = {}
    for bound in ("max_lag", "max_latency"):
        prepared = prepare(policy_for())
        objective = Objective.model_validate({bound: "1s"})
        simulation = Simulation(prepared.application, prepared.trace.rate_at, step_seconds=1.0)
        meter = Meter(simulation, Clairvoyant(prepared.application, 32), objective, 10.0)
        simulation.advance(90.0)
        scores[bound] = meter.score(0)
    assert scores["max_latency"].violation_share > scores["max_lag"].violation_share > 0
    assert scores["max_latency"].max_lag_seconds == scores["max_lag"].max_lag_seconds


NEEDS_PARAMETERS = {"static": "parallelism", "schedule": "entries", "threshold": "up_above: Field required"}


@pytest.mark.parametrize("name", sorted(PLANNERS))
def test_each_built_in_planner_can_be_replayed(name: str) -> None:
    """With its default parameters and what the default policy tells it; one that has to be told something says what."""
    options = ReplayOptions("step", planner=name, duration_seconds=60.0)
    if name in NEEDS_PARAMETERS:
        with pytest.raises(
            InvalidInput, match=f"--planner: planner {name}: .*{NEEDS_PARAMETERS[name]}.*in the file of --policy"
        ):
            prepare(options)
        return
    codes = run(prepare(options)).codes
    assert sum(codes.values()) == 6
    assert set(codes) - {"metric-missing"}, codes


def test_a_policys_parameters_are_kept_for_the_planner_they_were_written_for(tmp_path: Path) -> None:
    """Asked for by its name once more, too; another one begins with its defaults."""
    file = tmp_path / "policy.yaml"
    planner = "{name: static, parameters: {parallelism: 3}, timeout: 1s}"
    spec = f"{{objective: {{maxLag: 30s}}, bounds: {{max: 9}}, planner: {planner}}}"
    file.write_text(f"{{apiVersion: weir.dev/v1alpha1, kind: ScalingPolicy, spec: {spec}}}")
    kept = prepare(ReplayOptions("step", planner="static", policy_file=file)).policy.spec.planner
    assert kept.parameters == {"parallelism": 3}
    assert prepare(ReplayOptions("step", planner="hpa", policy_file=file)).policy.spec.planner.parameters == {}


class SimulatedRig:
    """A simulated job behind the driver, in simulated time."""

    def __init__(self) -> None:
        self.simulation = Simulation(chain(2), lambda _: 300.0)
        away = Simulation(chain(1), lambda _: 0.0)
        away.conditions.away = "connection refused"
        self.driver = SimulatedDriver(Observer(self.simulation, start=START).at)
        self.target, self.nobody, self.away = (
            target(job, port) for job, port in (("orders", 1), ("nobody", 1), ("orders", 2))
        )
        self.by_id = target(self.simulation.job_id, 1)
        self.driver.add(self.target, self.simulation)
        self.driver.add(self.away, away)
        self.simulation.advance(25)
        self.job_id, self.before = self.simulation.job_id, dict(self.simulation.observed)
        self.wanted = dict.fromkeys(self.before, 3)
        self.too_much = {**self.wanted, "enrich": 121}

    async def until(self, condition: Callable[[Snapshot], bool]) -> Snapshot:
        for _ in range(100):
            seen = await self.driver.observe(self.target)
            if condition(seen):
                return seen
            self.simulation.advance(self.simulation.now + 0.5)
        raise AssertionError(f"not within 50 s: {seen}")


def target(job: str, port: int) -> Target:
    return Target.model_validate({"flink": {"url": f"http://127.0.0.1:{port}", "job": job}})


class TestSimulated(DriverSuite):
    """The suite of all drivers."""

    @pytest.fixture
    def rig(self) -> SimulatedRig:
        return SimulatedRig()

    async def test_what_its_cluster_does_shows(self, rig: SimulatedRig) -> None:
        """An answer that is lost, a request that is refused, a cluster that goes away."""
        rig.simulation.conditions.lost_answers = 1
        assert isinstance(await rig.driver.request(rig.target, rig.job_id, rig.wanted), Unanswered)
        assert isinstance(await rig.driver.request(rig.target, rig.job_id, rig.wanted), Accepted)
        assert rig.simulation.requested == rig.wanted
        rig.simulation.conditions.away = "no route"
        assert (await rig.driver.observe(rig.target)).because == "no route"


def test_a_recording_by_the_minute_is_looked_at_once_a_minute() -> None:
    """In its own time; faster, or a shape made for minutes, is looked at every 10 s. What is asked for goes before."""
    slow = prepare(ReplayOptions(trace="worldcup98_minutes"))
    fast = prepare(ReplayOptions(trace="worldcup98_minutes", speedup=48.0))
    shape = prepare(ReplayOptions(trace="step"))
    asked = prepare(ReplayOptions(trace="worldcup98_minutes", interval_seconds=5.0))

    assert [p.policy.spec.interval.total_seconds() for p in (slow, fast, shape, asked)] == [60.0, 10.0, 10.0, 5.0]
