"""One execution of a job: records as a fluid through bounded queues, from the topics to the sinks.

Each step has two passes. From the sinks up: how much each operator can let go of, given what those behind it can still take in.
From the sources down: that much flows, at once through all operators, so that a step may be long without a queue's size bounding
the throughput. Plain floats in lists: for the few operators of a job that is several times faster than arrays.
"""

import math
from collections.abc import Mapping

from .capacity import capacity, hottest_share
from .log import Topic, water_level
from .spec import Application

_LEAST = 1e-9
_NEXT_TO_NOTHING = 1e-6


class Flow:
    """Queues, windows and counters of a run; all counters begin at 0 with it. Times in milliseconds, of all subtasks together."""

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
        # The busiest subtask sets the pace of all: its queue is full first, and then those before it wait.
        self._sustained = [
            r if topic else r / (p * h)
            for r, p, h, topic in zip(self._rates, self.parallelism, self.hottest, self._topics, strict=True)
        ]
        self._most_queued = [o.queue_records / hottest for o, hottest in zip(operators, self.hottest, strict=True)]
        self._ms_a_record = [1000.0 * p / rate for p, rate in zip(self.parallelism, self._rates, strict=True)]
        self.queued = [0.0] * n
        self.held = [0.0] * n
        """Taken into the present window, in records that came in."""
        self.due = [0.0] * n
        """Records of closed windows that are still to be given out."""
        self.records_in, self.records_out = [0.0] * n, [0.0] * n
        self.busy_ms, self.blocked_ms = [0.0] * n, [0.0] * n
        self.passed = [0.0] * n
        """Records an operator took in the last step, per second."""
        self._began = self._now = now

    def step(self, now: float, seconds: float, factor: float) -> None:
        """Let `seconds` pass, up to `now`, at `factor` of the warm capacities."""
        self._now = now
        for i in self._drifting:
            self._selectivity[i] = self.operators[i].selectivity_at(now)
        limits, free = self._limits(factor * seconds)
        self._run(limits, free, now, seconds, factor)

    @property
    def idle_ms(self) -> list[float]:
        """What is left of the time that went by."""
        passed = 1000.0 * (self._now - self._began)
        return [
            max(0.0, passed * p - busy - blocked)
            for p, busy, blocked in zip(self.parallelism, self.busy_ms, self.blocked_ms, strict=True)
        ]

    def in_flight(self) -> list[float]:
        """Records in the queues that will have reached each operator when a barrier sent now comes to it."""
        before = list(self.queued)
        for i, outputs in enumerate(self.outputs):
            if self._lengths[i] is None:
                for j, share in outputs:
                    before[j] += before[i] * self._selectivity[i] * share
        return before

    def delay_seconds(self) -> float:
        """How long what enters now waits in queues on the longest way, at the present rates."""
        longest = [0.0] * len(self.operators)
        for i, queued in enumerate(self.queued):
            rate = self.passed[i]
            if queued > _NEXT_TO_NOTHING:
                longest[i] += queued / rate if rate > _NEXT_TO_NOTHING else 0.0
            for j, _ in self.outputs[i]:
                longest[j] = max(longest[j], longest[i])
        return max(longest)

    def headroom(self) -> float:
        """By what factor the load could rise before an operator were full all the time; 0 while anything waits."""
        if max(self.queued) > _NEXT_TO_NOTHING or max(self.due) > _NEXT_TO_NOTHING:
            return 0.0
        if any(topic is not None and topic.backlog > _NEXT_TO_NOTHING for topic in self._topics):
            return 0.0
        highest = 0.0
        for taken, sustained in zip(self.passed, self._sustained, strict=True):
            highest = max(highest, taken / sustained)
        return 1 / highest if highest > 0 else math.inf

    # -- one step -----------------------------------------------------------------------------------------------

    def _limits(self, whole: float) -> tuple[list[float], list[float]]:
        """How many records each operator may take at most, and how many of its windows it may give out."""
        n = len(self.operators)
        room, limits, free = [0.0] * n, [0.0] * n, [math.inf] * n
        shares = self._shares(whole) if self._joins else {}
        selectivity, queued, most_queued, lengths = self._selectivity, self.queued, self._most_queued, self._lengths
        for i in range(n - 1, -1, -1):
            most = self._sustained[i] * whole
            for j, share in self.outputs[i]:
                wanted = shares.get(j)
                # Of several inputs each gets as much as the others, as far as it has any: a task takes them in turn.
                space = room[j] if wanted is None else min(wanted[i], water_level(list(wanted.values()), room[j]))
                if lengths[i] is not None:
                    free[i] = min(free[i], space / share if share > 0 else math.inf)
                elif selectivity[i] * share * most > space:
                    most = space / (selectivity[i] * share)
            if self.due[i] > free[i] + _LEAST:
                most = 0.0  # a window that cannot be given out keeps the operator from its input
            limits[i] = most
            room[i] = max(0.0, most_queued[i] - queued[i]) + most
        return limits, free

    def _shares(self, whole: float) -> dict[int, dict[int, float]]:
        """For each operator with several inputs: how many records each of them could give it if it had room."""
        could = [0.0] * len(self.operators)
        found: dict[int, dict[int, float]] = {j: {} for j in self._joins}
        for i, topic in enumerate(self._topics):
            has = topic.backlog if topic is not None else could[i] + self.queued[i]
            moved = min(has, self._sustained[i] * whole)
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
            if has - x > _LEAST and x < self._sustained[i] * factor * seconds * (1 - 1e-6):
                # It had more to do and time to do it: those behind it kept it from that.
                self.blocked_ms[i] += max(0.0, 1000.0 * seconds * self.parallelism[i] - busy)

    def _take_into_window(self, i: int, taken: float, now: float, seconds: float) -> None:
        """Take records in, evenly over the step, and close the windows that end in it."""
        length = self._lengths[i] or math.inf
        self.held[i] += taken
        last = math.floor((now + _LEAST) / length)
        closed = last - math.floor((now - seconds + _LEAST) / length)
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
