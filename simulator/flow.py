"""One execution of a job: records as a fluid through bounded queues, from the topics to the sinks.

Each step has two passes. From the sinks up: how much each operator can let go of, given what those behind it can still take in.
From the sources down: that much flows, at once through all operators, so that a step may be long without a queue's size bounding
the throughput. Plain floats in lists: for the few operators of a job that is several times faster than arrays.
"""

import math
from collections.abc import Mapping

from .capacity import capacity, hottest_share
from .log import Topic
from .spec import Application

_LEAST = 1e-9


class Flow:
    """Queues, windows and counters of a run; all counters begin at 0 with it. Times in milliseconds, of all subtasks together."""

    def __init__(self, application: Application, topics: Mapping[str, Topic], parallelism: Mapping[str, int]) -> None:
        operators = application.operators
        index = {operator.name: i for i, operator in enumerate(operators)}
        self.operators = operators
        self.parallelism = [parallelism[o.name] for o in operators]
        keyed = {link.target for link in application.links if link.ship == "hash"}
        n = len(operators)
        self.outputs = [
            [(index[k.target], k.share) for k in application.links if k.source == o.name] for o in operators
        ]
        self._inputs = [sum(1 for k in application.links if k.target == o.name) for o in operators]
        self._joins = any(inputs > 1 for inputs in self._inputs)
        self._topics: list[Topic | None] = [topics.get(o.name) for o in operators]
        self._rates, self._hottest, self._room_most = [], [], []
        for o, p, topic in zip(operators, self.parallelism, self._topics, strict=True):
            if topic is not None:
                topic.assign(p)
            hottest = topic.busiest_share if topic else hottest_share(o, p, keyed=o.name in keyed)
            self._rates.append(capacity(o, p))
            self._hottest.append(hottest)
            # The busiest subtask's queue is full first, and then everybody waits.
            self._room_most.append(o.queue_records / hottest)
        self._selectivity = [o.selectivity for o in operators]
        self._drifting = [i for i, o in enumerate(operators) if o.selectivity_over_time]
        self.windows = [i for i, o in enumerate(operators) if o.window_seconds is not None]
        self.queued = [0.0] * n
        self.held = [0.0] * n
        """Taken into the present window, in records that came in."""
        self.due = [0.0] * n
        """Records of closed windows that are still to be given out."""
        self.records_in, self.records_out = [0.0] * n, [0.0] * n
        self.busy_ms, self.blocked_ms, self.idle_ms = [0.0] * n, [0.0] * n, [0.0] * n
        self.hottest_busy_ms = [0.0] * n
        self.passed = [0.0] * n
        """Records an operator took in the last step, per second."""

    def step(self, now: float, seconds: float, factor: float) -> None:
        """Let `seconds` pass, up to `now`, at `factor` of the warm capacities."""
        for i in self._drifting:
            self._selectivity[i] = self.operators[i].selectivity_at(now)
        whole = [rate * factor * seconds for rate in self._rates]
        limits, given = self._limits(whole)
        self._run(whole, limits, given, seconds)
        for i in self.windows:
            length = self.operators[i].window_seconds or 0.0
            if self.held[i] > 0 and math.floor((now + _LEAST) / length) > math.floor((now - seconds + _LEAST) / length):
                self.due[i] += self._window_output(i)
                self.held[i] = 0.0

    def in_flight(self) -> list[float]:
        """Records in the queues that will have reached each operator when a barrier sent now comes to it."""
        before = list(self.queued)
        for i, outputs in enumerate(self.outputs):
            if i not in self.windows:
                for j, share in outputs:
                    before[j] += before[i] * self._selectivity[i] * share
        return before

    def delay_seconds(self) -> float:
        """How long what enters now waits in queues on the longest way, at the present rates."""
        longest = [0.0] * len(self.operators)
        for i, queued in enumerate(self.queued):
            rate = self.passed[i]
            if queued > 1e-6:
                longest[i] += queued / rate if rate > 1e-6 else 0.0
            for j, _ in self.outputs[i]:
                longest[j] = max(longest[j], longest[i])
        return max(longest)

    # -- one step -----------------------------------------------------------------------------------------------

    def _limits(self, whole: list[float]) -> tuple[list[float], list[float]]:
        """How many records each operator may take at most, and how many of a closed window it may give out."""
        n = len(self.operators)
        room, limits, given = [0.0] * n, [0.0] * n, [0.0] * n
        shares = self._shares(whole) if self._joins else None
        for i in range(n - 1, -1, -1):
            # The busiest subtask sets the pace of all, as those before it wait for its queue.
            hottest = self._hottest[i] * self.parallelism[i]
            most = whole[i] if self._topics[i] is not None else whole[i] / hottest
            ratio = self._selectivity[i]
            windowed = self.operators[i].window_seconds is not None
            for j, share in self.outputs[i]:
                free = room[j] if shares is None else room[j] * shares[i, j]
                if windowed:
                    if share > 0:
                        given[i] = min(given[i] or self.due[i], free / share)
                elif ratio * share > 0:
                    most = min(most, free / (ratio * share))
            if windowed:
                if not self.outputs[i]:
                    given[i] = self.due[i]
                if self.due[i] > given[i] + _LEAST:
                    most = 0.0  # a window that cannot be given out keeps the operator from its input
            limits[i] = max(0.0, most)
            room[i] = max(0.0, self._room_most[i] - self.queued[i]) + limits[i]
        return limits, given

    def _shares(self, whole: list[float]) -> dict[tuple[int, int], float]:
        """How the room before an operator with several inputs is divided: as those that want it could fill it."""
        wants = [0.0] * len(self.operators)
        by_edge: dict[tuple[int, int], float] = {}
        for i, topic in enumerate(self._topics):
            has = topic.backlog if topic is not None else wants[i] + self.queued[i]
            moved = min(has, whole[i] / (self._hottest[i] * self.parallelism[i]))
            windowed = self.operators[i].window_seconds is not None
            for j, share in self.outputs[i]:
                comes = (self.due[i] if windowed else moved * self._selectivity[i]) * share
                by_edge[i, j] = comes
                wants[j] += comes
        return {
            (i, j): 1.0 if self._inputs[j] < 2 else (comes / wants[j] if wants[j] > 0 else 1 / self._inputs[j])
            for (i, j), comes in by_edge.items()
        }

    def _run(self, whole: list[float], limits: list[float], given: list[float], seconds: float) -> None:
        n = len(self.operators)
        coming = [0.0] * n
        for i in range(n):
            topic, limit, p = self._topics[i], limits[i], self.parallelism[i]
            if topic is not None:
                has = topic.backlog
                x = topic.take(limit, whole[i] / p)
            else:
                has = self.queued[i] + coming[i]
                x = min(has, limit)
                self.queued[i] = has - x
            if self.operators[i].window_seconds is not None:
                self.held[i] += x
                out = given[i]
                self.due[i] -= out
            else:
                out = x * self._selectivity[i]
            for j, share in self.outputs[i]:
                coming[j] += out * share
                self.records_out[i] += out * share
            if not self.outputs[i]:
                self.records_out[i] += out
            self.records_in[i] += x
            self.passed[i] = x / seconds
            self._account(
                i, x / whole[i], blocked=has - x > _LEAST and self._is_held_back(i, x, whole[i]), seconds=seconds
            )

    def _is_held_back(self, i: int, taken: float, whole: float) -> bool:
        """Whether it is those behind it, and not its own work, that kept an operator from taking more."""
        return taken * self._hottest[i] * self.parallelism[i] < whole * (1 - 1e-6)

    def _account(self, i: int, share: float, *, blocked: bool, seconds: float) -> None:
        p, hottest = self.parallelism[i], self._hottest[i] * self.parallelism[i]
        share = min(1.0, share)
        spent = 1000.0 * seconds * p
        self.busy_ms[i] += share * spent
        self.hottest_busy_ms[i] += min(1.0, share * hottest) * 1000.0 * seconds
        if blocked:
            self.blocked_ms[i] += (1 - share) * spent
        else:
            self.idle_ms[i] += (1 - share) * spent

    def _window_output(self, i: int) -> float:
        operator, taken = self.operators[i], self.held[i]
        if operator.window_keys is None:
            return taken * self._selectivity[i]
        return operator.window_keys * -math.expm1(-taken / operator.window_keys)
