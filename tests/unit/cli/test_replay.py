"""`weir replay`: the loop on a simulated application, and its output."""

import json
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from io import StringIO
from itertools import pairwise
from pathlib import Path
from unittest import mock

import pytest
from rich.console import Console

from tests.unit.cli.test_command import Done, weir
from tests.unit.engines.driver_suite import OPEN, DriverSuite
from tests.unit.executor.builders import subject
from weir_cli.chart import LABEL, check_place
from weir_cli.replay import _table
from weir_contracts import Objective, PlanReply, PlanRequest, Subject
from weir_contracts.topics import PLANS
from weir_engines.driver import Accepted, Snapshot, Unanswered
from weir_replay.driver import SimulatedDriver
from weir_replay.figure import short
from weir_replay.loop import Loop
from weir_replay.options import InvalidReplay, ReplayOptions, prepare
from weir_replay.run import Meter, Point, Result, Score, replay_own, run
from weir_replay.simulator import PRESETS, Noise, Simulation, chain
from weir_replay.simulator.capacity import OfflineOptimum
from weir_replay.simulator.world import START
from weir_runtime.clock import FakeClock
from weir_sdk.installed import built_in

END = Point(28_800.0, 0.0, 0.0, 0.0, 0.0)


def policy_for(trace: str = "step") -> ReplayOptions:
    return ReplayOptions(trace=trace, interval_seconds=5)


def test_the_load_triples_and_is_answered() -> None:
    """One rescale, verified, in time: lag stays below the objective but for what a restart takes."""
    prepared = prepare(policy_for())
    simulation = Simulation(prepared.application, prepared.trace.rate_at, step_seconds=1.0)
    before = dict(simulation.observed)
    with closing(Loop()) as loop:
        loop.add(simulation, prepared.policy, noise=Noise(relative=0.02))
        loop.run(180)
    assert len(loop.driver.accepted_at) == 1
    assert loop.tally.ends == {"verified": 1}
    assert simulation.observed["enrich"] > before["enrich"]
    assert simulation.lag_seconds < 5


@pytest.mark.thorough
def test_the_same_seed_gives_the_same_decisions() -> None:
    """Down to the plans' ids."""

    def plans(seed: int) -> list[str]:
        prepared = prepare(policy_for())
        simulation = Simulation(prepared.application, prepared.trace.rate_at, step_seconds=1.0)
        with closing(Loop()) as loop:
            loop.add(simulation, prepared.policy, noise=Noise(relative=0.1), seed=seed)
            loop.run(75)
        return [(record.value or b"").decode() for record in loop.bus.records(PLANS.name)]

    assert plans(1) == plans(1)
    assert plans(1) != plans(2)


def test_a_lost_answer_costs_nothing() -> None:
    """The request came through, and is found to have."""
    prepared = prepare(policy_for())
    simulation = Simulation(prepared.application, prepared.trace.rate_at, step_seconds=1.0)
    simulation.conditions.lost_answers = 1
    with closing(Loop()) as loop:
        loop.add(simulation, prepared.policy)
        loop.run(120)
    assert (len(loop.driver.accepted_at), loop.tally.ends) == (1, {"verified": 1})


@pytest.mark.thorough
def test_a_planner_that_raises_ends_the_replay() -> None:
    """Its author sees the exception; the services would publish a hold and continue."""

    def plan(_request: PlanRequest) -> PlanReply:
        raise KeyError("a bug")

    with pytest.raises(KeyError, match="a bug"):
        replay_own(plan, name="mine", parameters={}, options=policy_for())


def replayed(*arguments: str) -> Done:
    return weir("replay", "--trace", "step", "--duration", "90", *arguments)


def test_the_score_is_printed_for_people(tmp_path: Path) -> None:
    """With curves, and as a picture."""
    figure = tmp_path / "replay.svg"
    done = replayed("--plot", str(figure))
    assert done.returncode == 0, done.stderr
    assert "violation" in done.stdout and "slot-seconds" in done.stdout and "rescales" in done.stdout
    assert "largest lag" in done.stdout and "⣀" in done.stdout
    drawn = figure.read_text()
    assert drawn.startswith("<svg")
    assert "@font-face" not in drawn, "a figure must not fetch anything"


def test_the_score_is_printed_for_programs() -> None:
    """The same figures with their units in their names; only the lag that the objective tolerates saves slot-seconds
    against the offline optimum, which has none: at most those of the overload before the first rescale."""
    done = replayed("-o", "json", "--topology", "two-sources", "--seed", "3")
    found = json.loads(done.stdout)
    score = found["score"]
    assert score["seconds"] == 90
    assert score["slot_seconds"] >= score["optimum_slot_seconds"] - score["max_lag_seconds"] > 0
    assert 0 <= score["violation_share"] <= 1
    assert sum(found["plans"].values()) == 9
    assert [point["at_seconds"] for point in found["points"]] == [10.0 * i for i in range(9)]


@pytest.mark.parametrize(
    ("arguments", "reported"),
    [
        (["--trace", "nowhere"], "--trace: trace 'nowhere' is none of"),
        (["--planner", "oracle"], "--planner: there is no planner 'oracle'"),
        (["--topology", "square"], "--topology: square: cannot be read"),
        (["--policy", "/nowhere.yaml"], "--policy: /nowhere.yaml: cannot be read"),
        (["--interval", "0.1"], "--interval: must lie between 1 and 600 seconds"),
        (["--interval", "nan"], "--interval: must lie between 1 and 600 seconds"),
        (["--peak-rate", "-1"], "--peak-rate: must be above 0"),
        (["--peak-rate", "1e308"], "--peak-rate: must be above 0 and at most 1e+12"),
        (["--speedup", "1e308"], "--speedup: must be above 0 and at most 1e+06"),
        (["--plot", "/nowhere/picture.svg"], "there is no folder /nowhere"),
        (["--plot", "/proc/picture.svg"], "--plot: /proc/picture.svg: cannot be written: "),
        (["--duration", "1"], "--duration: must lie between"),
        (["--trace", "spike", "--speedup", "500"], "--speedup: a replay sees the peaks of spike up to 200, is 500"),
        (["--plot", "picture.png"], "only .svg"),
        (["--noise", "2"], "--noise: must lie between 0 and 1"),
        (["-o", "xml"], "--output: 'xml'"),
        (["--since", "3h"], "--since: is for --recorded only"),
        (["--token-file", "token"], "--token-file: is for --recorded only"),
    ],
)
def test_an_invalid_option_is_reported_in_a_line(arguments: list[str], reported: str) -> None:
    """The option and what is wrong with it; exit code 2."""
    given = arguments if "--trace" in arguments else ["--trace", "step", *arguments]
    done = weir("replay", *given)
    assert done.returncode == 2
    assert reported in done.stderr
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize("option", ["--topology", "--policy"])
@pytest.mark.parametrize(
    "text", ["name: x\nname: y\n", "a: 0b_\n", "[" * 600, "a: \x00"], ids=["twice", "no number", "nested", "NUL"]
)
def test_invalid_yaml_is_reported_in_a_line(option: str, text: str, tmp_path: Path) -> None:
    """A key that comes twice, half a number, lists in lists in lists, a byte that no text has."""
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
        meter = Meter(simulation, OfflineOptimum(prepared.application, 32), objective, 10.0)
        simulation.advance(90.0)
        scores[bound] = meter.score(0)
    assert scores["max_latency"].violation_share > scores["max_lag"].violation_share > 0
    assert scores["max_latency"].max_lag_seconds == scores["max_lag"].max_lag_seconds


NEEDS_PARAMETERS = {"static": "parallelism", "schedule": "entries", "threshold": "up_above: is required"}


@pytest.mark.parametrize("name", sorted(built_in()))
def test_each_built_in_planner_can_be_replayed(name: str) -> None:
    """With its default parameters and the default policy; one that needs more names it."""
    options = ReplayOptions("step", planner=name, duration_seconds=60.0)
    if name in NEEDS_PARAMETERS:
        with pytest.raises(
            InvalidReplay, match=f"--planner: planner {name}: .*{NEEDS_PARAMETERS[name]}.*in the file of --policy"
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
        self.clock = FakeClock(START)
        self.driver = SimulatedDriver(self.clock)
        self.subject, self.nobody, self.away = (
            target(job, port) for job, port in (("orders", 1), ("nobody", 1), ("orders", 2))
        )
        self.by_id = target(self.simulation.job_id, 1)
        self.driver.add(self.subject, self.simulation)
        self.driver.add(self.away, away)
        self.clock.advance(25)
        self.simulation.advance(25)
        self.job_id, self.before = self.simulation.job_id, dict(self.simulation.observed)
        self.wanted = dict.fromkeys(self.before, 3)
        self.too_much = {**self.wanted, "enrich": 121}

    async def until(self, condition: Callable[[Snapshot], bool]) -> Snapshot:
        for _ in range(100):
            snapshot = await self.driver.observe(self.subject)
            if condition(snapshot):
                return snapshot
            self.clock.advance(0.5)
        raise AssertionError(f"not within 50 s: {snapshot}")


def target(job: str, port: int) -> Subject:
    return subject(job, f"http://127.0.0.1:{port}")


class TestSimulated(DriverSuite):
    """The suite of all drivers."""

    @pytest.fixture
    def rig(self) -> SimulatedRig:
        return SimulatedRig()

    async def test_what_its_cluster_does_shows(self, rig: SimulatedRig) -> None:
        """An answer that is lost, a request that is refused, a cluster that goes away."""
        rig.simulation.conditions.lost_answers = 1
        assert isinstance(await rig.driver.request(rig.subject, rig.job_id, rig.wanted, rig.before, OPEN), Unanswered)
        assert isinstance(await rig.driver.request(rig.subject, rig.job_id, rig.wanted, rig.before, OPEN), Accepted)
        assert rig.simulation.requested == rig.wanted
        rig.simulation.conditions.away = "no route"
        assert (await rig.driver.observe(rig.subject)).reason == "no route"


@pytest.mark.thorough
def test_a_recording_by_the_minute_is_sampled_once_a_minute() -> None:
    """In its own time; faster, or a shape made for minutes, is sampled every 10 s. An option takes precedence."""
    slow = prepare(ReplayOptions(trace="worldcup98_minutes"))
    fast = prepare(ReplayOptions(trace="worldcup98_minutes", speedup=48.0))
    shape = prepare(ReplayOptions(trace="step"))
    given = prepare(ReplayOptions(trace="worldcup98_minutes", interval_seconds=5.0))

    assert [p.policy.spec.interval.total_seconds() for p in (slow, fast, shape, given)] == [60.0, 10.0, 10.0, 5.0]


@pytest.mark.parametrize(
    ("duration", "seconds"), [(60.0, 10.0), (14_400.0, 10.0), (18_000.0, 13.0), (86_400.0, 60.0), (31_622_400.0, 60.0)]
)
def test_a_long_run_of_a_shape_is_sampled_less_often(duration: float, seconds: float) -> None:
    """No more samples a day than of a recording by the minute; integer seconds; an option takes precedence."""
    prepared = prepare(ReplayOptions("sine", duration_seconds=duration))
    assert prepared.policy.spec.interval.total_seconds() == seconds
    given = prepare(ReplayOptions("sine", duration_seconds=duration, interval_seconds=5.0))
    assert given.policy.spec.interval.total_seconds() == 5.0


def test_a_default_look_does_not_miss_a_spike() -> None:
    """A day of spikes of 40 s is looked at every 20 s, where a minute would show their mean."""
    prepared = prepare(ReplayOptions("spike", duration_seconds=86_400.0))
    assert prepared.policy.spec.interval.total_seconds() == 20.0


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("trace", "speedup", "interval"),
    [("spike", 24.0, 60.0), ("sine", 1.0, 300.0), ("sine", 24.0, 10.0), ("sine", 240.0, 5.0), ("spike", 23.0, 10.0)],
)
def test_no_peak_falls_between_two_samples(trace: str, speedup: float, interval: float) -> None:
    """Sped up, a wave passes within 10 s: the optimum, the static peak and the load still include its peak and mean."""
    prepared = prepare(ReplayOptions(trace, speedup=speedup, interval_seconds=interval, duration_seconds=1200.0))
    score, points = (result := run(prepared)).score, result.points
    assert score.peak_slot_seconds / score.seconds == OfflineOptimum(prepared.application, 16).slots(2400.0) == 6
    assert max(point.peak_arrivals for point in points) == pytest.approx(2400, rel=0.01)
    moments = [i / 50 for i in range(60_000)]
    mean = sum(prepared.trace.rate_at(at) for at in moments) / len(moments)
    assert sum(point.arrivals for point in points) / len(points) == pytest.approx(mean, rel=0.06)


@pytest.mark.thorough
def test_an_interval_that_hides_the_load_is_noted() -> None:
    """A wave of 240 s looked at every 120 s has the same mean each time: the planner sees a load that seems constant."""
    hidden = run(prepare(ReplayOptions("sine", interval_seconds=120.0, duration_seconds=3600.0)))
    assert hidden.score.rescales <= 3, "the wave has 15 periods, which the planner does not see"
    assert any(
        "rates over 120 s hide that from the planner: use --interval 60 or less" in note for note in hidden.notes
    )
    assert run(prepare(ReplayOptions("sine", interval_seconds=60.0, duration_seconds=600.0))).notes == []


def policy_file(folder: Path, spec: str) -> Path:
    file = folder / "pol.yaml"
    file.write_text(
        f"{{apiVersion: weir.dev/v1alpha1, kind: ScalingPolicy, spec: {{objective: {{maxLag: 30s}}, {spec}}}}}"
    )
    return file


def test_a_policy_that_names_its_application_apart_from_its_target_is_replayed(tmp_path: Path) -> None:
    """The simulation stands in for both."""
    application = "application: {flink: {url: 'http://jobmanager:8081', job: orders}}"
    target = "target: {kubernetes: {kind: Deployment, name: taskmanager, slots: 2}}"
    prepared = prepare(ReplayOptions("step", policy_file=policy_file(tmp_path, f"{application}, {target}")))
    assert prepared.policy.subject.flink.job == "replay"


@pytest.mark.parametrize("topology", sorted(PRESETS))
@pytest.mark.parametrize(
    ("bounds", "slots"),
    [
        ("max: 8", 16),
        ("max: 64", 64),
        ("min: 20, max: 64", 64),
        ("max: 200", 120),
        ("max: 8, operators: {O: {max: 40}}", 40),
    ],
)
def test_a_ready_made_cluster_has_room_for_what_the_bounds_allow(
    tmp_path: Path, topology: str, bounds: str, slots: int
) -> None:
    """As far as key groups go, and never less than it had."""
    operator = PRESETS[topology](1).operators[-1].name
    file = policy_file(tmp_path, f"bounds: {{{bounds.replace('O:', json.dumps(operator) + ':')}}}")
    prepared = prepare(ReplayOptions("step", topology=topology, policy_file=file, peak_rate=20_000.0))
    assert prepared.application.cluster.slots == slots
    spec = prepared.policy.spec.bounds
    for name, parallelism in prepared.application.parallelism.items():
        assert spec.of(name)[0] <= parallelism <= spec.of(name)[1]


@pytest.mark.thorough
def test_a_high_load_is_carried_where_the_policy_allows_it(tmp_path: Path) -> None:
    """Nothing is refused for want of slots, and about the optimum is used."""
    file = policy_file(tmp_path, "interval: 10s, bounds: {max: 64}")
    done = replayed("--policy", str(file), "--peak-rate", "10000", "--duration", "600", "-o", "json")
    found = json.loads(done.stdout)
    assert "slots" not in found["plans"]
    assert found["score"]["violation_share"] < 0.2
    assert found["score"]["times_optimum"] > 0.9


@pytest.mark.thorough
def test_the_optimum_is_what_policy_and_cluster_allow(tmp_path: Path) -> None:
    """The slots of a file's cluster limit it, and the bound of each operator, be it lower or higher than the others'."""
    file = tmp_path / "small.yaml"
    document = chain(1).on(slots=12).model_dump(mode="json")
    file.write_text(json.dumps(document))
    for bounds, optimum in (
        ("max: 64", 12),
        ("max: 9", 9),
        ("max: 2, operators: {enrich: {max: 5}}", 5),
        ("max: 64, operators: {enrich: {max: 3}, 'Source: orders': {max: 2}}", 4),
    ):
        policy = policy_file(tmp_path, f"bounds: {{{bounds}}}")
        prepared = prepare(ReplayOptions("step", topology=str(file), policy_file=policy, peak_rate=20_000.0))
        found = OfflineOptimum(prepared.application, prepared.policy.spec.bounds)
        assert found.slots(20_000.0) == optimum, bounds
        assert run(replace(prepared, duration_seconds=60.0)).score.peak_slot_seconds == optimum * 60


@pytest.mark.parametrize(
    ("spec", "more", "reported"),
    [
        (
            "bounds: {min: 130, max: 200}",
            [],
            "spec.bounds.min: 130 is more than the 120 subtasks that 'Source: orders' of",
        ),
        (
            "bounds: {max: 200, operators: {parse: {min: 121}}}",
            [],
            "spec.bounds.operators.parse.min: 121 is more than the 120",
        ),
        ("planner: {name: mine}", [], "spec.planner.name: there is no planner 'mine'; there are: "),
        ("planner: {name: static}", [], "spec.planner.parameters: planner static: "),
        ("planner: {name: static}", ["--planner", "static"], "spec.planner.parameters: planner static: "),
    ],
)
def test_an_invalid_policy_is_reported_with_its_file(tmp_path: Path, spec: str, more: list[str], reported: str) -> None:
    """Not with an option that was never given."""
    file = policy_file(tmp_path, spec)
    done = replayed("--policy", str(file), *more)
    assert done.returncode == 2
    assert done.stderr.startswith(f"weir: --policy: {file}: {reported}")
    assert len(done.stderr.splitlines()) == 1


def test_an_option_that_was_given_is_the_one_named(tmp_path: Path) -> None:
    """`--planner`, next to a policy with another one."""
    done = replayed("--policy", str(policy_file(tmp_path, "planner: {name: hpa}")), "--planner", "oracle")
    assert done.stderr.startswith("weir: --planner: there is no planner 'oracle'")


@pytest.mark.thorough
@pytest.mark.parametrize(("shape", "interval"), [("sine", 300.0), ("spike", 60.0)])
def test_what_the_load_needs_does_not_depend_on_how_long_it_is_looked_at(shape: str, interval: float) -> None:
    """A wave of minutes needs as much at its top in a day as in an hour, and on average as little."""
    hour, longer = (
        run(prepare(ReplayOptions(shape, interval_seconds=interval, duration_seconds=seconds)))
        for seconds in (3_600.0, 28_800.0)
    )
    assert hour.score.peak_slot_seconds == 6 * 3_600
    assert longer.score.peak_slot_seconds == 6 * 28_800
    assert longer.score.optimum_slot_seconds == pytest.approx(8 * hour.score.optimum_slot_seconds, rel=0.02)
    assert len(longer.points) < 360
    assert longer.score.optimum_slot_seconds == pytest.approx(
        sum(p.optimum_slots * (after.at_seconds - p.at_seconds) for p, after in pairwise([*longer.points, END])),
        rel=0.01,
    )
    assert max(p.peak_arrivals for p in longer.points) == pytest.approx(2_400, rel=0.01)


@pytest.mark.thorough
def test_notes_about_the_figures_are_printed_below_them() -> None:
    """Too few looks for a decision; more load than there may be slots for. Else nothing."""
    seldom = json.loads(
        weir("replay", "--trace", "step", "--interval", "600", "--peak-rate", "100", "-o", "json").stdout
    )
    assert seldom["notes"] == [
        "nothing was decided in 2 looks: give it longer (--duration) or look more often (--interval)"
    ]
    high = json.loads(replayed("--peak-rate", "1e12", "-o", "json").stdout)
    assert not high["score"]["peak_is_carried"]
    assert high["notes"] == [
        "the highest load is more than policy and cluster allow: optimum and static peak are all that they do"
    ]
    assert json.loads(replayed("-o", "json").stdout)["notes"] == []
    reported = replayed("--peak-rate", "1e12").stdout
    assert "note" in reported and "│" in reported.splitlines()[1], "the label keeps to its column"


@pytest.mark.parametrize(
    ("slots", "bounds", "rate", "carried"),
    [
        (64, "max: 64", 2_400.0, True),
        (4, "max: 64", 2_400.0, False),
        (64, "max: 64, operators: {enrich: {max: 3}}", 2_400.0, False),
    ],
)
def test_whether_the_optimum_carries_the_load(
    tmp_path: Path, slots: int, bounds: str, rate: float, carried: bool
) -> None:
    """It is not where the cluster's slots or an operator's own bound end before."""
    file = tmp_path / "small.yaml"
    file.write_text(json.dumps(chain(1).on(slots=slots).model_dump(mode="json")))
    prepared = prepare(
        ReplayOptions("step", topology=str(file), policy_file=policy_file(tmp_path, f"bounds: {{{bounds}}}"))
    )
    assert OfflineOptimum(prepared.application, prepared.policy.spec.bounds).carries(rate) is carried


@pytest.mark.thorough
def test_the_hardest_moment_need_not_have_the_peak_load(tmp_path: Path) -> None:
    """A load that falls while each record makes twenty of what was one: the note says that it is not carried."""
    application = chain(1).on(slots=8).model_dump(mode="json")
    first = application["operators"][0]
    first["selectivity_over_time"] = [[0, 1.0], [300, 20.0]]
    file, load = tmp_path / "fans.yaml", tmp_path / "falls.csv"
    file.write_text(json.dumps(application))
    load.write_text("timestamp,value\n2026-01-01T00:00:00Z,100\n2026-01-01T00:10:00Z,80\n2026-01-01T00:20:00Z,80\n")
    done = weir("replay", "--trace", str(load), "--topology", str(file), "--duration", "600", "-o", "json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["notes"]


@pytest.mark.parametrize(
    ("value", "label"),
    [
        (0.5, "0.5"),
        (9.999, "10"),
        (2_400.0, "2,400"),
        (999_400.0, "999,400"),
        (999_600_000.0, "1 G"),
        (1e12, "1 T"),
        (5e15, "5 P"),
    ],
)
def test_a_label_keeps_to_its_column(value: float, label: str) -> None:
    """However high the load."""
    assert short(value) == label
    assert len(label) <= LABEL - 2


@pytest.mark.parametrize(
    ("share", "used", "reported"),
    [
        (0.83, 39.0, "39, 0.39 times the offline optimum: the run was late, so it used less"),
        (0.0, 98.0, "98, 0.98 times the offline optimum: some work waited"),
        (0.83, 100.0, "100, 1.00 times the offline optimum"),
    ],
)
def test_less_than_the_optimum_is_explained(share: float, used: float, reported: str) -> None:
    """In the same row; a late strategy needs fewer slots."""
    score = Score(600.0, 30.0, share, used, 0, 1.0, 100.0, 100.0)
    console = Console(file=StringIO(), width=140)
    console.print(_table(prepare(policy_for()), Result(score, [], {}, {}, 0.1)))
    row = next(line for line in console.file.getvalue().splitlines() if line.startswith("slot-seconds"))  # type: ignore[attr-defined]
    assert row.removeprefix("slot-seconds").strip() == reported


def test_a_place_for_the_picture_is_tried_before_the_run(tmp_path: Path) -> None:
    """A folder is none; and trying leaves things as they were."""
    folder, link, there = tmp_path / "d.svg", tmp_path / "link.svg", tmp_path / "there.svg"
    folder.mkdir()
    link.symlink_to(tmp_path / "later.svg")
    there.write_text("<svg/>")
    with mock.patch("weir_replay.run.run") as ran:
        done = replayed("--plot", str(folder))
    assert (done.returncode, done.stderr, ran.called) == (2, f"weir: --plot: {folder}: is a folder\n", False)
    for path in (tmp_path / "new.svg", link, there):
        check_place(path)
    assert sorted(tmp_path.iterdir()) == [folder, link, there]
    assert link.is_symlink() and there.read_text() == "<svg/>"


def test_a_kafka_streams_application_is_replayed_on_its_brokers_with_and_without_metrics(tmp_path: Path) -> None:
    """`--topology streams`: twelve tasks, so that no more than twelve threads are ever held; a policy without `metrics` is
    observed from its brokers alone."""
    done = replayed("-o", "json", "--topology", "streams")
    score = json.loads(done.stdout)["score"]
    assert score["seconds"] == 90
    assert 0 < score["slot_seconds"] <= 12 * 90
    prepared = prepare(ReplayOptions("step", topology="streams"))
    streams = prepared.policy.subject.application.kafka_streams
    assert streams is not None
    assert streams.metrics is not None
    with pytest.raises(TypeError, match="is a Kafka Streams application"):
        _ = prepared.job
    file = tmp_path / "policy.yaml"
    file.write_text(
        "apiVersion: weir.dev/v1alpha1\nkind: ScalingPolicy\nmetadata: {namespace: a, name: b}\nspec:\n"
        "  application: {kafkaStreams: {applicationId: mine}}\n  objective: {maxLag: 30s}\n"
    )
    alone = prepare(
        ReplayOptions("step", topology="streams", policy_file=file)
    ).policy.subject.application.kafka_streams
    assert alone is not None
    assert alone.metrics is None
