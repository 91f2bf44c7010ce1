"""Print docs/reference/measurements.md from the results in bench/results. `python -m bench.table` writes the page."""

import json
from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any

from bench.results_file import PROJECT, RESULTS

PAGE = PROJECT / "docs" / "reference" / "measurements.md"
Figures = Iterator[tuple[str, str]]
"""Pairs of what was measured and its figure with the unit."""

_HEAD = """# Measurements

Generated from [bench/results](../../bench/results) by `python -m bench.table`; do not edit. Each JSON file has the
machine, its load, the time and the command. Machines differ and are shared: compare ratios, and runs on one machine.
Benchmarks are not tests.

- *accepted*: Flink confirmed the request for another parallelism; *running*: all tasks of the new parallelism run.
- *recovery*: until the probe at the job's sink stays within the objective.
- *late*: share of the time above the objective.
- *optimum*: slot-seconds of an offline optimum that knows the load and rescales for free.

Applications of fleet, backlog and plan benchmarks have ten operators.
"""


_STRATEGIES = """Strategies: `static-peak` and `static-mean` keep the parallelism that the highest and the mean load need; `reactive` is
the rule of the HPA for utilization; `clairvoyant` knows the load in advance. On the real job all times of `weir`, of `reactive` and
of the other planners are shortened by the replay's speed-up; `weir-30s` has 30 s of stabilization, and `weir-default` the
defaults of a policy as they are."""


def _percentiles(found: dict[str, Any], unit: str) -> str:
    return f"p50 {found['p50']:,.4g} {unit}, p95 {found['p95']:,.4g} {unit}"


def _loop(found: dict[str, Any]) -> Figures:
    for name, key in (
        ("observation to plan", "observation_to_plan_seconds"),
        (f"load step of ×{found['step_factor']:g} to accepted rescale", "step_to_accepted_seconds"),
        ("accepted to running", "accepted_to_running_seconds"),
        ("maximum lag at the sink after a step", "max_probe_lag_seconds"),
    ):
        yield name, _percentiles(found[key], "s")
    if "first_overload_to_accepted_seconds" in found:
        yield (
            "first overload of an unknown job to accepted rescale",
            _percentiles(found["first_overload_to_accepted_seconds"], "s"),
        )
    first = found["make_trial_to_first_acted_plan_seconds"]
    yield "`make trial` to first accepted rescale", f"{first['warm']:.0f} s warm, {first['cold']:.0f} s cold"


def _advance(found: dict[str, Any]) -> Figures:
    yield "processor time of one observation", _percentiles(found["bytes_to_bytes_ms"], "ms")
    yield "analyzer state of one application", f"{found['state_bytes'] / 1000:.0f} kB"


def _requests(found: dict[str, Any]) -> Figures:
    for case, measured in found["milliseconds_each"].items():
        yield f"processor time of a plan by `rate` with all guards, {case}", _percentiles(measured, "ms")


def _fleet(found: dict[str, Any]) -> Figures:
    for fleet in found["fleets"]:
        case = f"observation to plan, {fleet['applications']:,} applications at {fleet['interval_seconds']:g} s"
        share = fleet["plans_per_observation"]
        yield case, f"{_percentiles(fleet['observation_to_plan_seconds'], 's')}; {share:.2f} plans per observation"


def _backlog(found: dict[str, Any]) -> Figures:
    base = found["runs"][0]["observations_per_second"]
    for run in found["runs"]:
        setting = ", ".join(f"`{name}={value}`" for name, value in run["settings"].items()) or "default settings"
        rate = run["observations_per_second"]
        cost = f"{run['analyzer_cpu_milliseconds_each']:.1f} ms of a core each"
        yield f"waiting observations, {setting}", f"{rate:.0f} observations/s (×{rate / base:.2f}), {cost}"


def _spark(found: dict[str, Any]) -> Figures:
    for run in found["runs"]:
        name = f"waiting observations, {run['workers']} Spark worker{'s' * (run['workers'] > 1)} with one core each"
        yield name, f"{run['observations_per_second']:.0f} observations/s"


def _compose(found: dict[str, Any]) -> Figures:
    first, memory = found["first_action_seconds"], found["memory_megabytes"]
    yield "`docker compose up` to return", f"{found['up_returned_seconds']:.0f} s"
    yield (
        "`docker compose up` to first rescale",
        f"accepted {first['requested']:.0f} s, verified {first['ended']:.0f} s",
    )
    total = f"{memory['at_rest_total'] / 1000:.1f} GB; {memory['with_applications_total'] / 1000:.1f} GB"
    yield "memory of all containers", f"{total} with {found['applications']} applications"


def _images(found: dict[str, Any]) -> Figures:
    for name, image in found["images"].items():
        size, added = image["megabytes"], image["over_base_megabytes"]
        yield f"size of `weir-{name}`", f"{size:,.0f} MB, {added:,.0f} MB over its base"


def _what_if(found: dict[str, Any]) -> Figures:
    summary = found["summary"]
    rate, busy = summary["throughput_relative_error"], summary["utilization_error"]
    lag = summary["mean_lag_difference_seconds"]["sink"]
    yield (
        "correct answers to whether the job keeps up",
        f"{summary['verdicts_right']} of {summary['questions']}",
    )
    yield "error of predicted throughput", f"mean {rate['mean']:.1%}, maximum {rate['max']:.1%}"
    yield "error of predicted utilization", f"mean {busy['mean'] * 100:.1f}, maximum {busy['max'] * 100:.1f} points"
    yield "error of predicted lag over a curve", f"mean {lag['mean']:.1f} s, maximum {lag['max']:.1f} s"


def _fidelity(found: dict[str, Any]) -> Figures:
    for name, each in found["differences"].items():
        figure = f"{each['mean_real']:.4g} real, {each['mean_simulated']:.4g} simulated"
        yield f"simulator against the real job: {name}", f"{figure}, mean difference {each['mean_abs']:.3g}"


def _chaos(found: dict[str, Any]) -> Figures:
    for target, each in found.items():
        well = each["rounds"] - len(each["not_recovered"])
        case = f"faults on a {target} target, seed {each['seed']}"
        yield (
            f"{case}: rounds after which all was well ({each['rounds_with_two_faults']} of two faults at once)",
            f"{well} of {each['rounds']}",
        )
        yield (
            f"{case}: requests that were doubled, late, while paused, out of bounds, unasked, or of no owner",
            f"{sum(each['lies'].values())} of {each['rescale_requests']}; {each['dead_letters']} dead letters",
        )
        for part, seconds in each["recovered_seconds"].items():
            yield f"{case}: recovery of {part}", f"{_percentiles(seconds, 's')} ({seconds['count']} times)"


def _kubernetes(found: dict[str, Any]) -> Figures:
    actions, observed, compared = found["actions"], found["watched"], found["autoscalers"]
    yield "plan to replicas written on Kubernetes", _percentiles(actions["plan_to_scale_written_seconds"], "s")
    ready, settle = actions["pods_ready_seconds"], actions["settle_seconds"]
    for way, times in actions["written_to_verified_seconds"].items():
        case = f"written to verified, {way}; pods ready after {ready:g} s, settle time {settle:g} s"
        yield case, _percentiles(times, "s")
    for name, calls in observed["api_calls_per_minute"].items():
        memory = observed["usage"][name]["rss_megabytes"]
        case = f"{name} with {observed['workloads']} watched workloads at rest"
        yield case, f"{memory:,.0f} MB, {calls:.1f} calls of the API server a minute"
    minutes, objective = compared["seconds"] / 60, compared["objective_seconds"]
    for name, each in compared["autoscalers"].items():
        cost = each["replica_seconds"] / compared["needed_replica_seconds"]
        case = f"{minutes:.0f} min of steps and waves, queue of at most {objective:g} s, `{name}`"
        yield (
            case,
            f"late {each['late_share']:.1%}, {each['replica_seconds']:,} replica-seconds ({cost:.2f} × the load), maximum "
            f"{each['max_age_seconds']:,.0f} s",
        )


def _kubernetes_node(found: dict[str, Any]) -> Figures:
    apply, stages = found["apply_to"], found["stages"]
    reached = ", ".join(
        f"{what} {apply[name]:.0f} s"
        for what, name in (
            ("all deployments available", "all_available_seconds"),
            ("first acted plan", "first_plan_seconds"),
            ("its request accepted", "first_request_accepted_seconds"),
            ("verified", "first_action_verified_seconds"),
        )
    )
    yield "`kubectl apply -k` on a real node with images present", reached
    for name, stage in stages.items():
        case = name.removesuffix("_seconds").replace("_", " ")
        yield f"load step of a reactive Flink job, TaskManagers as pods: {case}", _percentiles(stage, "s")
    yield "memory of the largest pod", ", ".join(f"{k} {v:,.0f} MB" for k, v in found["pod_memory_megabytes"].items())


def _capacity(found: dict[str, Any]) -> Figures:
    for name, fitted in (("triples", "three points"), ("single", "one point")):
        reach = found[name]["within_reach"]
        error = f"median {reach['median']:.1%}, p90 {reach['p90']:.1%}; {reach['inside']:.0%} inside the interval"
        yield f"error of published capacity curves fitted on {fitted}, within reach", error


def _streams(found: dict[str, Any]) -> Figures:
    if groups := found.get("groups"):
        case = f"{groups['groups']} groups of {groups['partitions_each']} partitions"
        yield f"{case} read at once", _percentiles(groups["collectors"]["seconds"], "s")
        monitor = groups["monitor"]
        usage = f"{monitor['rss_megabytes']:,.0f} MB, {monitor['threads']} threads, {monitor['cpu_cores']:.2f} cores"
        scrapes = _percentiles(monitor["scrape_seconds"], "s")
        yield f"the monitor with {case} at {monitor['interval_seconds']} s", f"{usage}; a scrape {scrapes}"
    for part, way in (("steps", "with the metrics endpoint"), ("steps-agentless", "by the brokers alone")):
        if steps := found.get(part):
            asked, unanswered = steps["step_to_replicas_asked_seconds"], steps["steps_unanswered"]
            case = f"step of ×{steps['factor']:g}, {way}, commits every {steps['commit_interval_seconds']:g} s"
            count = f"{asked['count']} of {asked['count'] + unanswered}"
            yield f"{case}: instances requested", f"{_percentiles(asked, 's')} ({count})"
            yield f"{case}: maximum lag at the output", _percentiles(steps["max_lag_seconds"], "s")
    if still := found.get("scale-in"):
        for name, how in (("with_eviction_seconds", "with eviction"), ("without_eviction_seconds", "without eviction")):
            if still[name]["count"]:
                case = f"longest time a task of {still['tasks']} stands still at a scale-in, {how}"
                yield case, f"{_percentiles(still[name], 's')} ({still[name]['count']} times)"
    if contest := found.get("contest"):
        minutes = contest["load"]["seconds"] / 60
        for each in contest["strategies"]:
            case = f"{minutes:.0f} min of worldcup98_minutes on the Streams sample, `{each['strategy']}`"
            cost = f"{each['instance_seconds']:,.0f} instance-seconds, {each['changes']} changes"
            yield case, f"late {each['violation_share']:.1%}, {cost}, maximum lag {each['max_lag_seconds']:,.1f} s"


def _forecast(found: dict[str, Any]) -> Figures:
    for name, series in found["series"].items():
        ahead = {minutes: series[f"ahead_{minutes}_min"] for minutes in (1, 10, 30)}
        errors = ", ".join(f"{each['wape']:.1%} ({each['wape_of_last_value']:.1%})" for each in ahead.values())
        yield f"error of the rate forecast for 1, 10, 30 min, {name} (last value)", errors
        peak = series["peak_30_min"]
        usual = f"{peak['under_of_last_value']:.1%} under, {peak['over_of_last_value']:.1%} over"
        figure = f"{peak['under']:.1%} under, {peak['over']:.1%} over ({usual})"
        yield f"error of the peak forecast within 30 min, {name} (last value)", figure
        shares = ", ".join(f"{series[f'peak_{minutes}_min']['coverage']:.1%}" for minutes in ahead)
        yield f"peaks within 1, 10, 30 min that stayed under their bound of 90 %, {name}", shares
    cost = found["cost"]
    yield "processor time of one observation for a source's forecast", f"{cost['microseconds']:.0f} µs"


def _ahead(found: dict[str, Any]) -> Figures:
    missing = found["weeks"] - found["measured"]
    others = f"; {missing} not measured" if missing else ""
    met = f"{found['met']} of {found['measured']}{others}"
    aim = (
        "weeks in which the forecast meets its aim: a third of the late time with at most 1.1 × the slots, or no more of "
        "either where slots come in 5 s"
    )
    yield aim, met
    for each in found["results"]:
        case = f"{found['days']:g} days of {each['trace']}, capacity after {each['new_slot_seconds']:g} s, with the forecast (without)"
        late = f"late {each['late_seconds_with']:,.0f} s ({each['late_seconds_without']:,.0f} s)"
        yield case, f"{late}, {each['slots_with_over_without']:.3f} × the slots: {each['sentence']}"


FIGURES: dict[str, Callable[[dict[str, Any]], Figures]] = {
    "loop": _loop,
    "fleet": _fleet,
    "advance": _advance,
    "planner_requests": _requests,
    "capacity": _capacity,
    "forecast": _forecast,
    "ahead": _ahead,
    "backlog": _backlog,
    "spark_cluster": _spark,
    "what_if": _what_if,
    "fidelity": _fidelity,
    "chaos": _chaos,
    "kubernetes": _kubernetes,
    "kubernetes_node": _kubernetes_node,
    "streams": _streams,
    "compose": _compose,
    "images": _images,
}
"""How each result becomes rows of the table of figures. `compare`, `quality` and `planners` have the table of
strategies."""
ARCHIVED = frozenset({"backlog", "spark_cluster", "what_if", "fidelity", "compose", "images"})
"""Results of finished campaigns, whose commands are no longer in the tree."""
ARCHIVED_AT = "eccaa6c"
"""The last commit with the commands of the archived results."""


def _strategies(results: dict[str, dict[str, Any]]) -> Iterator[str]:
    rows: list[tuple[str, str, float, str, str, float]] = []
    compared = results["compare"]
    rounds = [compared[name]["strategies"][1:] for name in ("planners", "stabilization")]  # the first is Weir again
    for found in [*compared["strategies"], *chain.from_iterable(rounds)]:
        slots, lag_seconds = f"{found['slot_seconds']:,.0f} slot-seconds", found["max_probe_lag_seconds"]
        if "optimum_slot_seconds" in found:
            slots += (
                f", {found['slot_seconds'] / found['optimum_slot_seconds']:.2f} × the optimum with its stabilization"
            )
        late = found["violation_share"]
        rows.append(("eight hours, real job", found["strategy"], late, slots, f"{found['rescales']}", lag_seconds))
    for found in results["quality"]["results"]:
        case = f"{found['seconds'] / 86_400:.0f} days of {found['trace']}, simulated"
        slots, lag_seconds = f"{found['times_optimum']:.2f} × optimum", found["max_lag_seconds"]
        rows.append((case, found["strategy"], found["violation_share"], slots, f"{found['rescales']}", lag_seconds))
    for found in results["planners"]["summary"]:
        case, slots = f"{found['situations']} situations, simulated", f"{found['times_optimum']:.2f} × optimum"
        rescales, lag_seconds = f"{found['rescales_per_hour']:.1f}/h", found["largest_lag_seconds"]
        rows.append((case, found["planner"], found["violation_share"], slots, rescales, lag_seconds))
    for case, name, late, slots, rescales, lag_seconds in rows:
        yield f"| {case} | `{name}` | {late:.2%} | {slots} | {rescales} | {lag_seconds:,.1f} s |"


def page(folder: Path = RESULTS) -> str:
    """Return the page as Markdown from the results in `folder`. Raises `FileNotFoundError` if a result is missing."""
    documents = {name: json.loads((folder / f"{name}.json").read_text()) for name in FIGURES}
    strategies = {
        name: json.loads((folder / f"{name}.json").read_text()) for name in ("compare", "quality", "planners")
    }
    lines = [_HEAD, "## Figures", "", "| command | measured | result |", "|---|---|---|"]
    for name, document in documents.items():
        link = f"[`{document['command']}`](../../bench/results/{name}.json)" + " †" * (name in ARCHIVED)
        lines += [f"| {link} | {what} | {figure} |" for what, figure in FIGURES[name](document["results"])]
    lines += ["", f"† A finished campaign: the command is in commit {ARCHIVED_AT}."]
    lines += ["", "## Strategies and planners", ""]
    lines += [f"`{d['command']}` ([{name}.json](../../bench/results/{name}.json))," for name, d in strategies.items()]
    lines[-1] = lines[-1].rstrip(",") + ". Curves are the SVG files next to them."
    lines += ["", _STRATEGIES]
    lines += ["", "| load | strategy | late | slots | rescales | maximum lag |", "|---|---|---|---|---|---|"]
    lines += _strategies({name: document["results"] for name, document in strategies.items()})
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page())
