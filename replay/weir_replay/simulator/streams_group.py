"""Group of a Kafka Streams application: processes, members, rebalances, and the state that processes hold."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from uuid import UUID, uuid5

from .streams_spec import Assignment, StreamsApplication, Task, assign
from .world import FOREVER

_NAMESPACE = UUID("7c1d9b52-0d0c-5a5e-9a3f-6f1f0e6b2c11")
_EPSILON = 1e-9


@dataclass
class Thread:
    """Stream thread; a member of the group once its process has joined."""

    name: str
    member: str | None = None
    tasks: list[Task] = field(default_factory=list)
    alive_seconds: float = 0.0
    busy_seconds: float = 0.0
    processed: float = 0.0


@dataclass
class Process:
    """Instance of the application."""

    id: str
    ordinal: int
    joins_at: float
    threads: list[Thread]
    missing: dict[Task, float] = field(default_factory=dict)
    """Changelog records that it has still to read, of tasks whose state it holds at least in part."""
    reads: set[Task] = field(default_factory=set)
    """Tasks whose changelog it reads: standbys, warm-ups, and active tasks that restore."""
    ends_at: float | None = None
    """When a process that was told to end has ended."""
    next_commit_at: float = FOREVER

    @property
    def process_id(self) -> UUID:
        """Identity by which Kafka Streams knows it."""
        return uuid5(_NAMESPACE, self.id)

    @property
    def joined(self) -> bool:
        """Whether a thread is a member."""
        return any(thread.member is not None for thread in self.threads)

    @property
    def complete(self) -> bool:
        """Whether all threads are members."""
        return all(thread.member is not None for thread in self.threads)

    @property
    def active(self) -> list[Task]:
        return [task for thread in self.threads for task in thread.tasks]


@dataclass
class Member:
    """Member as the coordinator knows it."""

    process: str
    client_id: str
    process_id: UUID
    tasks: tuple[Task, ...] = ()
    """Active tasks of its last assignment."""
    copies: tuple[Task, ...] = ()
    """Standbys and warm-ups of its last assignment."""
    expires_at: float | None = None
    """When the coordinator gives it up; None while it sends heartbeats."""


class Group:
    """Processes and their group. `commit` and `rewind` are called with tasks that are committed, or lost uncommitted."""

    def __init__(
        self,
        application: StreamsApplication,
        *,
        commit: Callable[[Iterable[Task]], None],
        rewind: Callable[[Iterable[Task]], None],
    ) -> None:
        self._application = application
        self._commit, self._rewind = commit, rewind
        self.replicas = application.instances
        self.processes: dict[str, Process] = {}
        """Processes that have not ended, oldest first."""
        self.ended: list[str] = []
        self.members: dict[str, Member] = {}
        self.probing_at: float | None = None
        self.rebalances = 0
        """Number of assignments."""
        self.busiest_seconds = 0.0
        """Work of the busiest thread, in seconds per record of the load."""
        self._rebalance_ends_at: float | None = None
        self._owners: dict[Task, str] = {}
        """Owner of each task by the last assignment."""
        self._made = self._joined = 0

    # -- processes --------------------------------------------------------------------------------------------------------

    def begin(self, instances: int) -> None:
        """Start with processes that are members and hold the state of their tasks."""
        for ordinal in range(1, instances + 1):
            self._join(self._start(ordinal, joins_at=0.0), 0.0)
        for i, task in enumerate(self._application.tasks):
            owner = list(self.processes.values())[i % instances]
            owner.missing[task] = 0.0
        self._rebalance_ends_at = None
        self._assign(0.0)

    def scale(self, replicas: int, now: float) -> None:
        """Run another number of processes; those with the highest ordinals end first."""
        self.replicas = replicas
        staying = [p for p in self.processes.values() if p.ends_at is None]
        for process in sorted(staying, key=lambda p: -p.ordinal)[: max(0, len(staying) - replicas)]:
            self._end(process, now)
        self._fill(now)

    def replace(self, instance: str, now: float) -> bool:
        """End a process; another one starts in its place. Returns whether it was there."""
        process = self.processes.get(instance)
        if process is None or process.ends_at is not None:
            return False
        self._end(process, now)
        return True

    def kill(self, instance: str, now: float) -> None:
        """End a process at once, without a commit."""
        process = self.processes[instance]
        if process.ends_at is None:
            self._rewind(process.active)
        self._gone(process, now)
        self._fill(now)

    def _fill(self, now: float) -> None:
        """Start processes for the ordinals that have none, once the ones before have ended."""
        taken = {p.ordinal for p in self.processes.values()}
        for ordinal in range(1, self.replicas + 1):
            if ordinal not in taken:
                self._start(ordinal, joins_at=now + self._application.start_seconds)

    def _start(self, ordinal: int, joins_at: float) -> Process:
        self._made += 1
        name = f"{self._application.name}-{ordinal}-{self._made:06x}"
        threads = [Thread(f"{name}-StreamThread-{n}") for n in range(1, self._application.threads + 1)]
        process = self.processes[name] = Process(name, ordinal, joins_at, threads)
        return process

    def _end(self, process: Process, now: float) -> None:
        """Stop a process: it commits, but does not leave the group."""
        self._commit(process.active)
        process.ends_at = now + self._application.stop_seconds
        process.next_commit_at = FOREVER

    def _gone(self, process: Process, now: float) -> None:
        del self.processes[process.id]
        self.ended.append(process.id)
        for member in self.members.values():
            if member.process == process.id and member.expires_at is None:
                member.expires_at = now + self._application.session_seconds

    def _join(self, process: Process, now: float) -> None:
        for thread in process.threads:
            if thread.member is not None:
                continue
            self._joined += 1
            client_id = f"{thread.name}-consumer"
            thread.member = f"{client_id}-{uuid5(_NAMESPACE, f'{client_id} {self._joined}')}"
            self.members[thread.member] = Member(process.id, client_id, process.process_id)
        process.next_commit_at = now + self._application.commit_interval_seconds

    # -- events ------------------------------------------------------------------------------------------------------------

    @property
    def state(self) -> str:
        """State of the group as its coordinator names it."""
        if not self.members:
            return "Empty"
        return "Stable" if self._rebalance_ends_at is None else "PreparingRebalance"

    @property
    def is_calm(self) -> bool:
        """Whether nothing moves or restores, and every process is a member."""
        if self.state != "Stable" or any(not p.complete or p.ends_at is not None for p in self.processes.values()):
            return False
        return all(m.expires_at is None for m in self.members.values()) and not self.restores

    @property
    def restores(self) -> bool:
        """Whether an active task waits for its state."""
        return any(p.missing.get(task, 0.0) > 0 for p in self.processes.values() for task in p.active)

    def next_event(self, now: float) -> float:
        """Return the second of the next event after `now`."""
        instants = [member.expires_at for member in self.members.values()]
        for process in self.processes.values():
            instants += [None if process.complete else process.joins_at, process.ends_at, process.next_commit_at]
        instants += [self.probing_at, self._rebalance_ends_at]
        return min((at for at in instants if at is not None and at > now + _EPSILON), default=FOREVER)

    def run_events(self, now: float) -> None:
        now += _EPSILON
        for process in list(self.processes.values()):
            if process.ends_at is not None:
                if now >= process.ends_at:
                    self._gone(process, now)
                    self._fill(now)
            elif not process.complete and now >= process.joins_at:
                self._join(process, now)
                self._rebalance(now)
            elif now >= process.next_commit_at:
                process.next_commit_at += self._application.commit_interval_seconds
                self._commit(process.active)
        expired = [m for m, each in self.members.items() if each.expires_at is not None and now >= each.expires_at]
        if expired:
            self.evict(expired, now)
        if self.probing_at is not None and now >= self.probing_at:
            self._rebalance(now)
        # A rebalance waits for every member, also for one that has ended.
        waits = any(member.expires_at is not None for member in self.members.values())
        if self._rebalance_ends_at is not None and now >= self._rebalance_ends_at and not waits:
            self._rebalance_ends_at = None
            self._assign(now)

    def evict(self, members: Iterable[str], now: float) -> list[str]:
        """Remove members; returns those that were there."""
        found = [member for member in members if self.members.pop(member, None) is not None]
        for process in self.processes.values():
            for thread in process.threads:
                if thread.member in found:  # a living one joins again
                    thread.member, thread.tasks = None, []
                    process.joins_at = now + self._application.rebalance_seconds
        if found:
            self._rebalance(now)
        return found

    def _rebalance(self, now: float) -> None:
        self.probing_at = None
        self._rebalance_ends_at = now + self._application.rebalance_seconds
        if self._application.eager:
            for process in self._living():
                self._commit(process.active)
                for thread in process.threads:
                    thread.tasks = []

    # -- assignments --------------------------------------------------------------------------------------------------------

    def _living(self) -> list[Process]:
        return [p for p in self.processes.values() if p.joined and p.ends_at is None]

    def _assign(self, now: float) -> None:
        """Assign the tasks. A task of a living owner is given up first and assigned by the rebalance that follows."""
        app, living = self._application, self._living()
        by_state: dict[bool, list[Task]] = {True: [], False: []}
        for task in app.tasks:
            by_state[app.state_records(task[0]) > 0].append(task)
        wanted = assign(
            [p.id for p in sorted(living, key=lambda p: p.process_id)],
            by_state[True],
            by_state[False],
            self._owners,
            self._missing,
            acceptable_lag=app.acceptable_recovery_lag,
            max_warmups=app.max_warmups,
            standbys=app.standbys,
        )
        self.rebalances += 1
        self._owners = dict(wanted.active)
        revoked = False
        held = {task: p.id for p in living for task in p.active}
        for process in living:
            lost = [task for task in process.active if wanted.active.get(task) != process.id]
            if lost:
                self._commit(lost)
                revoked = True
            own = [t for t, o in wanted.active.items() if o == process.id and held.get(t, process.id) == process.id]
            self._give(process, own)
        self._note(wanted, living)
        self.probing_at = now + app.probing_seconds if wanted.probes else None
        if revoked:
            self._rebalance(now)
            self.probing_at = None

    def _give(self, process: Process, tasks: list[Task]) -> None:
        """Divide tasks over the threads; one stays with its thread while that is balanced."""
        threads = [thread for thread in process.threads if thread.member is not None]
        per_thread = -(-len(tasks) // len(threads))
        kept = [[task for task in thread.tasks if task in tasks][:per_thread] for thread in threads]
        left = [task for task in tasks if all(task not in own for own in kept)]
        for own in sorted(kept, key=len):
            while left and len(own) < per_thread:
                own.append(left.pop(0))
        for thread, own in zip(threads, kept, strict=True):
            thread.tasks = own

    def _note(self, wanted: Assignment, living: list[Process]) -> None:
        """Note which state each process reads from now on, and what the coordinator knows of the members."""
        app = self._application
        for process in living:
            copies = {task for task, where in wanted.standbys.items() if process.id in where}
            copies |= {task for task, where in wanted.warmups.items() if where == process.id}
            process.reads = copies | {task for task in process.active if app.state_records(task[0]) > 0}
            for task in process.reads:
                process.missing.setdefault(task, app.state_records(task[0]))
            shares = sorted(copies)
            for i, thread in enumerate(process.threads):
                if thread.member is None:
                    continue
                member = self.members[thread.member]
                member.tasks, member.copies = tuple(thread.tasks), tuple(shares[i :: len(process.threads)])
        seconds = app.task_seconds()
        work = [sum(seconds[s][p] for s, p in thread.tasks) for process in living for thread in process.threads]
        self.busiest_seconds = max(work, default=FOREVER)

    # -- state ---------------------------------------------------------------------------------------------------------------

    def _missing(self, instance: str, task: Task) -> float:
        whole = self._application.state_records(task[0])
        return self.processes[instance].missing.get(task, whole)

    def runs(self, process: Process, task: Task) -> bool:
        """Return whether an assigned task processes records: its state is there."""
        return process.missing.get(task, 0.0) <= 0

    def changed(self, task: Task, records: float) -> None:
        """Note that an active task has written records to its changelog, which all copies lack."""
        whole = self._application.state_records(task[0])
        if whole <= 0 or records <= 0:
            return
        for process in self.processes.values():
            if task in process.missing and task not in process.active:
                process.missing[task] = min(whole, process.missing[task] + records)

    def restore(self, seconds: float) -> None:
        """Let processes read changelogs; tasks that wait come first."""
        app = self._application
        for process in self.processes.values():
            left = seconds * app.restore_bytes_per_second / app.changelog_record_bytes
            active = set(process.active)
            for task in sorted(process.reads, key=lambda task: (task not in active, task)):
                lacks = process.missing.get(task, 0.0)
                read = min(lacks, left)
                process.missing[task] = lacks - read
                left -= read

    def restore_remaining(self, process: Process) -> float:
        """Return the changelog records that its active tasks have still to read."""
        return sum(process.missing.get(task, 0.0) for task in process.active)
