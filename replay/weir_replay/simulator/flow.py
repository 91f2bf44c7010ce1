"""One execution of a job: records as a fluid through bounded queues, from the topics to the sinks.

Each step has two passes. From the sinks up: the records each operator can emit, given the room downstream.
From the sources down: these records flow through all operators at once, so that queue sizes do not bound the throughput
of a long step. Plain floats in lists: several times faster than arrays for the few operators of a job.
"""

import math
from collections.abc import Mapping

from .capacity import capacity, hottest_share
from .log import Topic, water_level
from .spec import Application

_EPSILON = 1e-9
_NEGLIGIBLE_RECORDS = 1e-6


class Flow:
    """Queues, windows and counters of a run; counters begin at 0. Times in milliseconds, summed over the subtasks."""

    def __init__(
        self, application: Application, topics: Mapping[str, Topic], parallelism: Mapping[str, int], now: float
    ) -> None:
        operators = application.operators
        index = {operator.name: i for i, operator in enumerate(operators)}
        links = application.links
        n = len(operators)
        self.operators = operators
        self.parallelism = [parallelism[o.name] for o in operators]
        self.outputs = [[(index[k.target], k.share) for k in links if k.source == o.name] for o in operators]
        self.windows = [i for i, o in enumerate(operators) if o.window_seconds is not None]
        self._joins = [j for j, o in enumerate(operators) if sum(1 for k in links if k.target == o.name) > 1]
        self._topics = [topics.get(o.name) for o in operators]
        self._lengths = [o.window_seconds for o in operators]
        self._selectivity = [o.selectivity for o in operators]
        self._drifting = [i for i, o in enumerate(operators) if o.selectivity_over_time]
        self._rates = [capacity(o, p) for o, p in zip(operators, self.parallelism, strict=True)]
        self.hottest = self._hottest_shares(application)
        """Share of each operator's records that its busiest subtask gets."""
        # The busiest subtask sets the pace: its queue fills first, and upstream operators then wait.
        self._sustained = [
            r if topic else r / (p * h)
            for r, p, h, topic in zip(self._rates, self.parallelism, self.hottest, self._topics, strict=True)
        ]
        self._max_queued = [o.queue_records / hottest for o, hottest in zip(operators, self.hottest, strict=True)]
        self._ms_a_record = [1000.0 * p / rate for p, rate in zip(self.parallelism, self._rates, strict=True)]
        self.queued = [0.0] * n
        self.held = [0.0] * n
        """Input records held in the current window."""
        self.due = [0.0] * n
        """Records of closed windows that are not emitted yet."""
        self.records_in, self.records_out = [0.0] * n, [0.0] * n
        self.busy_ms, self.blocked_ms = [0.0] * n, [0.0] * n
        self.passed = [0.0] * n
        """Input records/s of each operator in the last step."""
        self._began = self._now = now

    def step(self, now: float, seconds: float, factor: float) -> None:
        """Advance by `seconds` up to `now`, at `factor` of the warm capacities."""
        self._now = now
        for i in self._drifting:
            self._selectivity[i] = self.operators[i].selectivity_at(now)
        limits, free = self._limits(factor * seconds)
        self._run(limits, free, now, seconds, factor)

    @property
    def idle_ms(self) -> list[float]:
        """Elapsed milliseconds without busy and backpressured time."""
        elapsed = 1000.0 * (self._now - self._began)
        return [
            max(0.0, elapsed * p - busy - blocked)
            for p, busy, blocked in zip(self.parallelism, self.busy_ms, self.blocked_ms, strict=True)
        ]

    def in_flight(self) -> list[float]:
        """Return the queued records that reach each operator before a barrier sent now."""
        before = list(self.queued)
        for i, outputs in enumerate(self.outputs):
            if self._lengths[i] is None:
                for j, share in outputs:
                    before[j] += before[i] * self._selectivity[i] * share
        return before

    def delay_seconds(self) -> float:
        """Return how long a record that enters now waits in queues on the longest path, at the current rates."""
        waits = [0.0] * len(self.operators)
        for i, queued in enumerate(self.queued):
            rate = self.passed[i]
            if queued > _NEGLIGIBLE_RECORDS:
                waits[i] += queued / rate if rate > _NEGLIGIBLE_RECORDS else 0.0
            for j, _ in self.outputs[i]:
                waits[j] = max(waits[j], waits[i])
        return max(waits)

    def headroom(self) -> float:
        """Return the factor by which the load may rise before an operator saturates; 0 while any record waits."""
        if max(self.queued) > _NEGLIGIBLE_RECORDS or max(self.due) > _NEGLIGIBLE_RECORDS:
            return 0.0
        if any(topic is not None and topic.backlog > _NEGLIGIBLE_RECORDS for topic in self._topics):
            return 0.0
        utilization = 0.0
        for taken, sustained in zip(self.passed, self._sustained, strict=True):
            utilization = max(utilization, taken / sustained)
        return 1 / utilization if utilization > 0 else math.inf

    def _limits(self, full_seconds: float) -> tuple[list[float], list[float]]:
        """Return the most records each operator may take, and the most of its windows it may emit."""
        n = len(self.operators)
        room, limits, free = [0.0] * n, [0.0] * n, [math.inf] * n
        shares = self._shares(full_seconds) if self._joins else {}
        selectivity, queued, max_queued, lengths = self._selectivity, self.queued, self._max_queued, self._lengths
        for i in range(n - 1, -1, -1):
            take = self._sustained[i] * full_seconds
            for j, share in self.outputs[i]:
                wanted = shares.get(j)
                # A task reads its inputs in turn: each gets an equal part, as far as it has records.
                space = room[j] if wanted is None else min(wanted[i], water_level(list(wanted.values()), room[j]))
                if lengths[i] is not None:
                    free[i] = min(free[i], space / share if share > 0 else math.inf)
                elif selectivity[i] * share * take > space:
                    take = space / (selectivity[i] * share)
            if self.due[i] > free[i] + _EPSILON:
                take = 0.0  # a window that cannot be emitted blocks the operator's input
            limits[i] = take
            room[i] = max(0.0, max_queued[i] - queued[i]) + take
        return limits, free

    def _shares(self, full_seconds: float) -> dict[int, dict[int, float]]:
        """Return, for each operator with several inputs, the records each input could deliver without backpressure."""
        could = [0.0] * len(self.operators)
        found: dict[int, dict[int, float]] = {j: {} for j in self._joins}
        for i, topic in enumerate(self._topics):
            has = topic.backlog if topic is not None else could[i] + self.queued[i]
            moved = min(has, self._sustained[i] * full_seconds)
            out = moved * self._selectivity[i] if self._lengths[i] is None else self.due[i] + moved
            for j, share in self.outputs[i]:
                could[j] += out * share
                if j in found:
                    found[j][i] = out * share
        return found

    def _run(self, limits: list[float], free: list[float], now: float, seconds: float, factor: float) -> None:
        queued, records_in, records_out = self.queued, self.records_in, self.records_out
        coming = [0.0] * len(limits)
        for i, limit in enumerate(limits):
            topic = self._topics[i]
            if topic is not None:
                has = topic.backlog
                x = topic.take(limit, self._rates[i] * factor * seconds / self.parallelism[i])
            else:
                has = queued[i] + coming[i]
                x = has if has < limit else limit
                queued[i] = has - x
            if self._lengths[i] is None:
                out = x * self._selectivity[i]
            else:
                self._take_into_window(i, x, now, seconds)
                out = min(self.due[i], free[i])
                self.due[i] -= out
            outputs = self.outputs[i]
            for j, share in outputs:
                coming[j] += out * share
                records_out[i] += out * share
            if not outputs:
                records_out[i] += out
            records_in[i] += x
            self.passed[i] = x / seconds
            busy = x * self._ms_a_record[i] / factor
            self.busy_ms[i] += busy
            if has - x > _EPSILON and x < self._sustained[i] * factor * seconds * (1 - 1e-6):
                # Input and time were left: a downstream operator held it back.
                self.blocked_ms[i] += max(0.0, 1000.0 * seconds * self.parallelism[i] - busy)

    def _take_into_window(self, i: int, taken: float, now: float, seconds: float) -> None:
        """Add records, evenly over the step, and close the windows that end in it."""
        length = self._lengths[i] or math.inf
        self.held[i] += taken
        last = math.floor((now + _EPSILON) / length)
        closed = last - math.floor((now - seconds + _EPSILON) / length)
        if closed > 0:
            still_open = taken * min(1.0, max(0.0, now - last * length) / seconds)
            self.due[i] += closed * self._window_output(i, (self.held[i] - still_open) / closed)
            self.held[i] = still_open

    def _window_output(self, i: int, taken: float) -> float:
        keys = self.operators[i].window_keys
        return taken * self._selectivity[i] if keys is None else keys * -math.expm1(-taken / keys)

    def _hottest_shares(self, application: Application) -> list[float]:
        keyed = {link.target for link in application.links if link.ship == "hash"}
        found = []
        for operator, p, topic in zip(self.operators, self.parallelism, self._topics, strict=True):
            if topic is not None:
                topic.assign(p)
            found.append(topic.busiest_share if topic else hottest_share(operator, p, keyed=operator.name in keyed))
        return found
