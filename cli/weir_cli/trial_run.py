"""Runs one trial from start to report."""

import contextlib
import json
import shutil
import signal
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.live import Live

from testbed.process import TestbedError
from testbed.register import reap_leftovers
from testbed.trial.loop_stack import LoopStack
from testbed.trial.options import DEFAULT_PORT, TrialError, TrialOptions
from testbed.trial.preflight import preflight
from testbed.trial.report import SAMPLE_SECONDS, Sample, TrialResult, closing_lines, judge, summary
from testbed.trial.sampler import (
    REPORTED_KINDS,
    UNREPORTED_FIELDS,
    EventFollower,
    Sampler,
    Snapshot,
    actions_of,
    decisions_of,
)
from testbed.trial.stack import StreamsStack, TrialStack
from workloads.probe import ProbeError

from .trial import SPARKLINE_WIDTH, Screen, line, render

DATA = (
    "kafka/kafka-data",
    "redis/appendonly.aof",
    "flink/scratch",
    "flink/checkpoints",
    "flink/upload",
    "spark",
    "instances/state",
)
"""Of a run folder: what the parts stored, 30 MB a minute. Logs and the report stay."""
LINE_EVERY_SECONDS = 10.0
"""Without a terminal: a line this often, not a screen."""


class Trial:
    """One trial with its samples; `interrupted` is set by Ctrl-C."""

    def __init__(self, options: TrialOptions, stack: LoopStack, console: Console) -> None:
        self.options = options
        self.stack = stack
        self.console = console
        self.interrupted = threading.Event()
        self.begun = False
        """Everything is up, and there is something to report."""
        self.samples: list[Sample] = []
        """All, for the report's series."""
        self.events = EventFollower(f"{stack.api_url}/v1/events", kinds=REPORTED_KINDS, without=UNREPORTED_FIELDS)
        self.began_epoch = 0.0

    @property
    def objective_seconds(self) -> float:
        bound = self.stack.policy.spec.objective.bound_seconds
        # A utilization objective bounds no time; the probe is then held to the trial's default.
        return self.options.objective_seconds if bound is None else bound

    @property
    def mode(self) -> str:
        return self.stack.policy.spec.mode

    def run(self) -> None:
        """Sample until the duration is over or Ctrl-C; `TestbedError` if a part dies."""
        self.began_epoch = time.time() - self.stack.elapsed_seconds()
        self.events.start()
        sampler = Sampler(self.stack)
        try:
            with self._display() as show:
                while not self._over():
                    self.stack.check()
                    snapshot = sampler.take()
                    self.samples.append(snapshot.sample)
                    show(self._screen(snapshot))
                    # Keep to the grid: sampling itself takes time.
                    due = len(self.samples) * SAMPLE_SECONDS
                    self.interrupted.wait(max(0.0, due - self.stack.elapsed_seconds()))
        finally:
            self.events.stop()
            sampler.close()

    def _over(self) -> bool:
        duration = self.options.duration_seconds
        return self.interrupted.is_set() or (duration is not None and self.stack.elapsed_seconds() >= duration)

    @contextlib.contextmanager
    def _display(self) -> Iterator[Any]:
        if self.console.is_terminal:
            with Live(console=self.console, refresh_per_second=4, transient=False) as live:
                yield lambda screen: live.update(render(screen))
            return
        printed_at = -LINE_EVERY_SECONDS

        def report(screen: Screen) -> None:
            nonlocal printed_at
            if screen.elapsed_seconds - printed_at >= LINE_EVERY_SECONDS:
                printed_at = screen.elapsed_seconds
                self.console.print(line(screen), highlight=False, soft_wrap=True)

        yield report

    def _screen(self, last: Snapshot) -> Screen:
        shown = self.samples[-SPARKLINE_WIDTH:]
        return Screen(
            elapsed_seconds=last.sample.t,
            duration_seconds=self.options.duration_seconds,
            trace=self.options.trace,
            mode=self.mode,
            objective_seconds=self.objective_seconds,
            input_rates=[s.input_rate for s in shown],
            lags=[s.lag_seconds for s in shown],
            probe_lags=[s.probe_lag_seconds for s in shown],
            operators=last.operators,
            planned=last.sample.planned,
            requested=last.sample.requested,
            observed=last.sample.parallelism,
            slots_used=last.sample.slots,
            slots_total=last.slots_total,
            decision=last.decision,
            outcome=last.action,
            api_url=self.stack.api_url,
            notes=last.notes,
        )

    def _options(self) -> dict[str, Any]:
        """Return the options, with the policy's mode and planner where no option was given."""
        given = {k: v for k, v in asdict(self.options).items() if not isinstance(v, Path)}
        return {**given, "mode": self.mode, "planner": self.stack.policy.spec.planner.name}

    def report(self) -> tuple[dict[str, Any], TrialResult]:
        """Return the report as a document, and the result."""
        events = self.events.events()
        decisions = decisions_of(events, self.began_epoch)
        actions = actions_of(events, self.began_epoch)
        judged = judge(self.samples, actions, decisions, self.objective_seconds, self.mode)
        document = {
            "started_at": datetime.fromtimestamp(self.began_epoch, UTC).isoformat(),
            "options": self._options(),
            "services": [asdict(state) for state in self.stack.states()],
            "series": [asdict(sample) for sample in self.samples],
            "decisions": [asdict(decision) for decision in decisions],
            "actions": [action.to_document() for action in actions],
            "summary": summary(self.samples, actions, self.objective_seconds),
            "verdict": asdict(judged),
        }
        return document, judged


def run_trial(options: TrialOptions, console: Console) -> int:
    """Run a trial; returns the exit code: 0 held, 1 not held or a part failed, 2 cannot start with these options."""
    try:
        preflight(options)
        folder = _run_folder(options.runs_folder)
    except TrialError as error:
        _complain(error)
        return 2
    for name in reap_leftovers(options.runs_folder):
        console.print(f"ended {name}, a process of an earlier run", style="dim", highlight=False)
    return _run_in(folder, options, console)


def _run_folder(runs: Path) -> Path:
    folder = runs / datetime.now().astimezone().strftime("%Y%m%d-%H%M%S")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise TrialError(f"the run folder {folder} cannot be created: {error.strerror}") from None
    return folder


def _run_in(folder: Path, options: TrialOptions, console: Console) -> int:
    _print(console, f"run folder {folder}")
    try:
        stack = TrialStack(options, folder) if options.workload == "flink" else StreamsStack(options, folder)
        trial = Trial(options, stack, console)
        with _ctrl_c(trial):
            return _from_start_to_end(trial, folder, console)
    except (TestbedError, TrialError, ProbeError) as error:
        _complain(error)
        return 1


def _from_start_to_end(trial: Trial, folder: Path, console: Console) -> int:
    def report(text: str) -> None:
        _print(console, text)

    try:
        trial.stack.start(report)
        trial.begun = True
        report(f"API {trial.stack.api_url}, interactive documentation {trial.stack.api_url}/docs")
        report(_next_commands(trial))
        trial.run()
        return _finish(trial, folder, console)
    except KeyboardInterrupt:
        report("interrupted before the load began")
        return 130
    finally:
        trial.stack.stop(report)
        _remove_data(folder)
        report(f"everything is stopped; logs are in {folder}")


def _next_commands(trial: Trial) -> str:
    """Return the line that names the application and what to type in another terminal."""
    program, application = sys.argv[0], trial.stack.policy.application
    with contextlib.suppress(ValueError):
        program = str(Path(program).resolve().relative_to(Path.cwd()))
    server = "" if trial.options.port == DEFAULT_PORT else f" --server {trial.stack.api_url}"
    return f"application {application}; in another terminal: {program} explain {application}{server} (or get, watch, what-if)"


def _remove_data(folder: Path) -> None:
    for name in DATA:
        path = folder / name
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


def _complain(error: Exception) -> None:
    """Print an error as every command does: one line on standard error."""
    sys.stderr.write(f"weir: {error}\n")


def _print(console: Console, text: str) -> None:
    console.print(text, highlight=False, soft_wrap=True)


def _finish(trial: Trial, folder: Path, console: Console) -> int:
    document, judged = trial.report()
    text = json.dumps(document, indent=1, default=str)
    (folder / "report.json").write_text(text)
    if trial.options.report is not None:
        try:
            trial.options.report.write_text(text)
        except OSError as error:
            raise TrialError(f"--report: {trial.options.report}: {error.strerror}; it is in {folder}, too") from None
    for figure in closing_lines(document["summary"]):
        console.print(f"  {figure}", highlight=False, soft_wrap=True)
    if trial.interrupted.is_set():
        console.print(f"interrupted; the report is {folder / 'report.json'}", highlight=False, soft_wrap=True)
        return 130
    console.print(
        ("held: " if judged.passed else "not held: ") + judged.sentence,
        style="green" if judged.passed else "red",
        highlight=False,
        soft_wrap=True,
    )
    return 0 if judged.passed else 1


@contextlib.contextmanager
def _ctrl_c(trial: Trial) -> Iterator[None]:
    """Lets SIGINT and SIGTERM break off the start at once, and end a trial that has begun in order, with its report."""

    def on_signal(_number: int, _frame: object) -> None:
        if trial.interrupted.is_set():
            sys.stderr.write("stopping, please wait\n")
            return
        trial.interrupted.set()
        if not trial.begun:
            raise KeyboardInterrupt

    earlier = {n: signal.signal(n, on_signal) for n in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in earlier.items():
            signal.signal(number, handler)
