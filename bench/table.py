"""Print docs/reference/measurements.md from the results in bench/results. `python -m bench.table` writes the page."""

import json
from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any

from bench.results_file import PROJECT, RESULTS
from weir_contracts import counted

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


def _single(found: dict[str, Any]) -> Figures:
    case = "one process"
    yield f"{case}: `weir demo` to its first output", _percentiles(found["start"]["start_to_first_output_seconds"], "s")
    decided = found["flink"]["start_to_explained_decision_seconds"]
    yield (
        f"{case}: `weir run --flink` on a real job to its first explained decision",
        _percentiles(decided, "s"),
    )
    for each in found["jobs"]["jobs"]:
        figures = f"{_percentiles(each['observation_to_plan_seconds'], 's')}; {each['cpu_cores']:.2f} cores, {each['megabytes']:.0f} MB"
        jobs = counted(each["jobs"], "job")
        yield f"{case}: observation to plan, {jobs} of two operators read every {each['interval_seconds']:g} s", figures
    further = found["jobs"]["each_job"]
    yield f"{case}: each further of these jobs", f"{further['cpu_cores']:.1%} of a core, {further['megabytes']:.2f} MB"
    for each in found["applications"]["applications"]:
        figures = f"{_percentiles(each['observation_to_plan_seconds'], 's')}; {each['cpu_cores']:.2f} cores, {each['megabytes']:.0f} MB"
        size = f"{each['applications']} applications at {each['interval_seconds']:g} s"
        yield f"{case}: observation to plan, {size}, without the reading", figures
    further = found["applications"]["each_application"]["megabytes"]
    if further is not None:
        yield f"{case}: memory of each further application", f"{further:.2f} MB"
    step = found["step"]
    accepted = (
        f"{_percentiles(step['step_to_accepted_seconds'], 's')} ({step['step_to_accepted_seconds']['count']} steps)"
    )
    yield f"{case}: load step of ×{step['step_factor']:g} to accepted rescale", accepted
    yield f"{case}: append to the log", _percentiles(found["append"]["milliseconds"], "ms")


def _chaos(found: dict[str, Any]) -> Figures:
    for run, each in found.items():
        well = each["rounds"] - len(each["not_recovered"])
        case = f"faults, target {run}"
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


def _capacity(found: dict[str, Any]) -> Figures:
    for name, fitted in (("triples", "three points"), ("single", "one point")):
        reach = found[name]["within_reach"]
        error = f"median {reach['median']:.1%}, p90 {reach['p90']:.1%}; {reach['inside']:.0%} inside the interval"
        yield f"error of published capacity curves fitted on {fitted}, within reach", error


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


def _page(found: dict[str, Any]) -> Figures:
    first, pages, one = found["first_view"], found["open_pages"], found["application"]
    yield f"first view of {first['applications']:,} applications in a new browser", _percentiles(first["seconds"], "s")
    yield "the page's files, packed", f"{found['bundle']['packed_bytes'] / 1000:.0f} kB"
    cost = f"{pages['cores_of_pages']:.1%} of a core"
    yield f"cost of {pages['pages']} open pages with {pages['applications']} applications", cost
    yield f"timeline of {one['cycles']:,} cycles, in an open page", _percentiles(one["timeline_seconds"], "s")
    yield "answer of a what-if", _percentiles(one["what_if_seconds"], "s")


FIGURES: dict[str, Callable[[dict[str, Any]], Figures]] = {
    "loop": _loop,
    "fleet": _fleet,
    "single": _single,
    "advance": _advance,
    "planner_requests": _requests,
    "capacity": _capacity,
    "forecast": _forecast,
    "ahead": _ahead,
    "chaos": _chaos,
    "page": _page,
}
"""How each result becomes rows of the table of figures. `compare`, `quality` and `planners` have the table of
strategies."""
ARCHIVED = RESULTS / "archived.md"
"""Rows of finished campaigns. What measured them is no longer in the tree, so they are kept as they were made."""


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
        link = f"[`{document['command']}`](../../bench/results/{name}.json)"
        lines += [f"| {link} | {what} | {figure} |" for what, figure in FIGURES[name](document["results"])]
    lines += (folder / ARCHIVED.name).read_text().splitlines()
    lines += ["", "## Strategies and planners", ""]
    lines += [f"`{d['command']}` ([{name}.json](../../bench/results/{name}.json))," for name, d in strategies.items()]
    lines[-1] = lines[-1].rstrip(",") + ". Curves are the SVG files next to them."
    lines += ["", _STRATEGIES]
    lines += ["", "| load | strategy | late | slots | rescales | maximum lag |", "|---|---|---|---|---|---|"]
    lines += _strategies({name: document["results"] for name, document in strategies.items()})
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page())
