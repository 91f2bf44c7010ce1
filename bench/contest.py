"""A contest: applications that do the same work on the same records at the same time, each under its own strategy."""

import contextlib
import itertools
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import httpx
from confluent_kafka import KafkaException

from testbed.process import TestbedError
from testbed.trial.loop_stack import LoopStack
from weir_runtime.http_client import client
from workloads.probe import Probe

SAMPLE_SECONDS = 1.0


class Controller:
    """Calls `cycle` every `period_seconds` on a separate thread, with the seconds since its start.

    A cycle whose application or brokers do not answer is left out.
    """

    def __init__(self, name: str, cycle: Callable[[float], None], period_seconds: float) -> None:
        self._name = name
        self._cycle = cycle
        self._period_seconds = period_seconds
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="controller", daemon=True)
        self._thread.start()

    def check(self) -> None:
        """Raise `TestbedError` if it does not decide any more: a contest without it is none."""
        if not self._thread.is_alive():
            raise TestbedError(f"the controller of {self._name} has died")

    def stop(self) -> None:
        """Return once the thread has ended."""
        self._stopped.set()
        self._thread.join(10)

    def _run(self) -> None:
        began = time.monotonic()
        while not self._stopped.is_set():
            with contextlib.suppress(TestbedError, KafkaException, httpx.HTTPError, TimeoutError):
                self._cycle(time.monotonic() - began)
            self._stopped.wait(self._period_seconds)


@dataclass(frozen=True)
class Sample:
    """An application at `t` seconds after the load began. None is unknown."""

    t: float
    input_rate: float | None
    """Records/s that came for every application."""
    lag_seconds: float | None
    """By the probe at its output."""
    size: int | None
    """Slots or instances that it holds."""


@dataclass(frozen=True)
class Figures:
    """Result of a contestant."""

    violation_share: float | None
    size_seconds: float
    changes: int
    max_lag_seconds: float | None
    samples: int
    samples_without_lag: int


@dataclass
class Contestant:
    """A strategy and its application. `size` returns what the application holds now, None while that is unknown."""

    strategy: str
    probe: Probe
    size: Callable[[], int | None]
    controller: Controller | None = None
    samples: list[Sample] = field(default_factory=list)

    def figures(self, objective_seconds: float) -> Figures:
        """Return the figures. While the size is unknown, the last one counts."""
        sizes, held = [], 0
        for sample in self.samples:
            held = held if sample.size is None else sample.size
            sizes.append(held)
        lags = [s.lag_seconds for s in self.samples if s.lag_seconds is not None]
        spans = [b.t - a.t for a, b in itertools.pairwise(self.samples)]
        return Figures(
            violation_share=round(sum(lag > objective_seconds for lag in lags) / len(lags), 4) if lags else None,
            size_seconds=round(sum(n * s for n, s in zip(sizes, spans, strict=False)), 1),
            changes=sum(a != b for a, b in itertools.pairwise(n for n in sizes if n)),
            max_lag_seconds=max(lags, default=None),
            samples=len(self.samples),
            samples_without_lag=len(self.samples) - len(lags),
        )

    def stop(self) -> None:
        """End controller and probe; the application ends with its stack."""
        if self.controller is not None:
            self.controller.stop()
        self.probe.stop()


def sample_all(stack: LoopStack, contestants: Sequence[Contestant], from_seconds: float, until_seconds: float) -> None:
    """Sample all of them between two moments of the load; raises `TestbedError` if a part dies."""
    began, due = stack.began_at or time.monotonic(), from_seconds
    if stack.elapsed_seconds() > from_seconds:
        raise TestbedError(f"the contestants were not up within the first {from_seconds:g} s of the load")
    with client(timeout=2.0) as http:
        while due <= until_seconds:
            time.sleep(max(0.0, began + due - time.monotonic()))
            stack.check()
            rate: float | None = None
            with contextlib.suppress(httpx.HTTPError, ValueError, KeyError):
                rate = http.get(f"{stack.load_url}/state").json()["rate"]
            for each in contestants:
                if each.controller is not None:
                    each.controller.check()
                at = round(stack.elapsed_seconds(), 2)
                each.samples.append(Sample(at, rate, each.probe.lag_seconds(), each.size()))
            due += SAMPLE_SECONDS
