"""A Kafka Streams application in simulated seconds: instances, their group, tasks, state, commits.

Differences from a real one: records are a fluid, tasks of one instance move between its threads without cost, and every
process has the same speed.
"""

from collections.abc import Callable, Iterable

from .log import TaskInput, water_level
from .streams_group import Group, Process
from .streams_spec import StreamsApplication, Task
from .world import CALM_SECONDS, CALM_UTILIZATION, Conditions, World

_NEGLIGIBLE_RECORDS = 1e-6


class StreamsSimulation(World):
    """One application and its load."""

    def __init__(
        self,
        application: StreamsApplication,
        arrivals: Callable[[float], float],
        *,
        step_seconds: float = 0.5,
        calm_seconds: float = CALM_SECONDS,
    ) -> None:
        super().__init__(arrivals, step_seconds, calm_seconds)
        self.application = application
        self.conditions = Conditions(slots=application.max_instances * application.threads)
        self.version = 1
        """Counts the changes of `replicas`."""
        self.accepted_at: list[float] = []
        """Times at which another number of instances was accepted."""
        self.inputs = [TaskInput(each.shares()) for each in application.subtopologies]
        self.group = Group(application, commit=self._commit, rewind=self._rewind)
        self._idle = False
        """Whether the last step has left no record waiting."""
        self.group.begin(application.instances)

    # -- requests ----------------------------------------------------------------------------------------------------

    @property
    def replicas(self) -> int:
        """Number of instances requested."""
        return self.group.replicas

    def request(self, replicas: int) -> str | None:
        """Request a number of instances; returns None, or the reason of a refusal."""
        if self.conditions.refuses is not None:
            return self.conditions.refuses
        if not 1 <= replicas <= self.application.max_instances:
            return f"{replicas} instances are not between 1 and {self.application.max_instances}"
        if replicas != self.replicas:
            self.version += 1
            self.accepted_at.append(self.now)
            self.group.scale(replicas, self.now)
        return None

    def restart(self, instance: str) -> str | None:
        """End an instance and start another one in its place; returns None, or the reason of a refusal."""
        if not self.group.replace(instance, self.now):
            return f"no instance {instance} runs"
        self.conditions.stuck.discard(instance)
        return None

    def kill(self, instance: str) -> None:
        """End a process without a word, as an out-of-memory kill does; another one starts in its place."""
        self.group.kill(instance, self.now)

    def evict(self, members: Iterable[str]) -> list[str]:
        """Remove members from the group; returns those that were there."""
        return self.group.evict(members, self.now)

    # -- time -----------------------------------------------------------------------------------------------------------

    def _next_event(self) -> float:
        return self.group.next_event(self.now)

    def _run_events(self) -> None:
        self.group.run_events(self.now)

    def _calm_rate(self) -> float | None:
        if not self._idle or not self.group.is_calm:
            return None
        return CALM_UTILIZATION * self.conditions.capacity_factor / max(1e-12, self.group.busiest_seconds)

    def _elapse(self, seconds: float) -> None:
        before, self.now = self.now, self.now + seconds
        rate = max(0.0, self.arrivals(before + seconds / 2))
        for subtopology, topic in zip(self.application.subtopologies, self.inputs, strict=True):
            if subtopology.topic:
                topic.append(self.now, rate * subtopology.share * seconds)
        produced = [0.0] * len(self.inputs)
        for process in self.group.processes.values():
            self._process(process, seconds, produced)
        for i, each in enumerate(self.application.subtopologies):
            if not each.topic:
                self.inputs[i].append(self.now, produced[i])
        self.group.restore(seconds)
        self._idle = self.waiting_records <= _NEGLIGIBLE_RECORDS

    def _process(self, process: Process, seconds: float, produced: list[float]) -> None:
        """Let the threads of a process work: each divides its time evenly over its tasks with records."""
        for thread in process.threads:
            if thread.member is None:
                continue
            thread.alive_seconds += seconds
            if process.id in self.conditions.stuck:
                thread.busy_seconds += seconds
            if process.id in self.conditions.stuck or process.ends_at is not None:
                continue
            tasks = [task for task in thread.tasks if self.group.runs(process, task)]
            wants = [self._waiting(task) * self._cost_seconds(task) for task in tasks]
            level = water_level(wants, seconds) if wants else 0.0
            for task, want in zip(tasks, wants, strict=True):
                spent = min(want, level)
                records = spent / self._cost_seconds(task)
                thread.busy_seconds += spent
                thread.processed += records
                self._read(task, records, produced)

    def _read(self, task: Task, records: float, produced: list[float]) -> None:
        subtopology, partition = task
        self.inputs[subtopology].positions[partition] += records
        self.group.changed(task, records)
        following = subtopology + 1
        if following < len(self.inputs) and not self.application.subtopologies[following].topic:
            produced[following] += records * self.application.subtopologies[subtopology].selectivity

    def _cost_seconds(self, task: Task) -> float:
        return self.application.subtopologies[task[0]].service_seconds / self.conditions.capacity_factor

    def _waiting(self, task: Task) -> float:
        topic = self.inputs[task[0]]
        return max(0.0, topic.ends[task[1]] - topic.positions[task[1]])

    def _commit(self, tasks: Iterable[Task]) -> None:
        for subtopology, partition in tasks:
            topic = self.inputs[subtopology]
            if topic.positions[partition] > topic.committed[partition]:
                topic.committed[partition] = topic.positions[partition]
                topic.committed_times[partition] = topic.appended_at(partition, topic.positions[partition])
        for topic in self.inputs:
            topic.forget_read()

    def _rewind(self, tasks: Iterable[Task]) -> None:
        """Process from the last commit again, as the next owner of a killed process's tasks does."""
        for subtopology, partition in tasks:
            topic = self.inputs[subtopology]
            topic.positions[partition] = topic.committed[partition]

    # -- what there is ---------------------------------------------------------------------------------------------------

    @property
    def slots_used(self) -> int:
        """Threads of all processes that have not ended, those that start included."""
        return len(self.group.processes) * self.application.threads

    @property
    def appended(self) -> float:
        """Records appended to all input topics."""
        return sum(t.curve.total for t, s in zip(self.inputs, self.application.subtopologies, strict=True) if s.topic)

    @property
    def waiting_records(self) -> float:
        """Records that no task has processed."""
        return sum(max(0.0, e - p) for t in self.inputs for e, p in zip(t.ends, t.positions, strict=True))

    @property
    def lag_seconds(self) -> float:
        """Age of the oldest record of an input topic that no task has processed."""
        topics = zip(self.inputs, self.application.subtopologies, strict=True)
        return max(topic.lag_seconds(self.now) for topic, each in topics if each.topic)

    @property
    def latency_seconds(self) -> float:
        """Age of the oldest record that has not passed the last sub-topology."""
        topics = zip(self.inputs, self.application.subtopologies, strict=True)
        return self.lag_seconds + sum(topic.lag_seconds(self.now) for topic, each in topics if not each.topic)

    def reported_lag(self) -> float:
        """Return the lag in records that the members report: of the partitions that they own, from their positions.

        This is `records-lag` of the consumers, which vanishes with its owner.
        """
        owned = {
            task for process in self.group.processes.values() for task in process.active if process.ends_at is None
        }
        return sum(self._waiting(task) for task in owned if self.application.subtopologies[task[0]].topic)
