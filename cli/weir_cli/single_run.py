"""Runs all services in this process, from the options of `weir run` to the end."""

import asyncio
import sys
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import NamedTemporaryFile, TemporaryDirectory

import yaml
from rich.live import Live

from weir_contracts import ScalingPolicy, counted, listed
from weir_knowledge.adapters.sqlite import SqliteStore
from weir_knowledge.core import MAX_HISTORY_COUNT, HistoryLimits
from weir_knowledge.report import report
from weir_knowledge.settings import KnowledgeSettings
from weir_knowledge.store import Store, StoreUnavailable
from weir_knowledge.view import View
from weir_runtime.bus import Bus
from weir_runtime.clock import Clock, SystemClock
from weir_runtime.http import PortInUse, listen
from weir_runtime.loop import Stop, configure_logs
from weir_runtime.service import run_service
from weir_runtime.sqlite_bus import SqliteBus
from weir_runtime.sqlite_file import FileUnusable, SqliteFile

from .advice import Advice, line, read_advice, screen
from .apply import Document, checked
from .chart import check_place, save_page
from .client import CommandError, InvalidInput
from .discovery import LABEL, LOOK_SECONDS, Discovery, Source
from .discovery_flink import FlinkJobs
from .discovery_kafka import Brokers, ConsumerGroups
from .discovery_kubernetes import Workloads
from .output import Format, text_of
from .single import LocalApi, SingleSettings, compose, detail_of, of_environment
from .terminal import Keyboard, keyboard, say, terminal

FILE = "weir.db"
REDRAW_SECONDS = 1.0
SCREEN_SHARE = 0.05
"""Of the time: reading and drawing take no more."""
ONCE_SECONDS = 120.0
"""Of `--once` without `--for`: until each application has an explained decision, at most this long."""
LINE_EVERY_SECONDS = 60.0
"""Without a terminal: a line for each application when its decision changes, and this often."""
KEY_SECONDS = 0.2
"""Between two looks at the keys."""
POLICIES = Path("weir-policies")
"""Folder for the policies of the key `w` without `--write`."""


@contextmanager
def log_and_store(folder: Path | None, clock: Clock) -> Iterator[tuple[Bus, Store]]:
    """Return the log and the store, in a file of this folder, or of one that is removed at the end. `InvalidInput` if it
    cannot be used."""
    kept = of_environment(KnowledgeSettings).kept()
    with ExitStack() as stack:
        place = folder or Path(stack.enter_context(TemporaryDirectory(prefix="weir-")))
        try:
            file = stack.enter_context(closing(SqliteFile.open(place / FILE, clock)))
            store = SqliteStore(file, **kept)
            yield SqliteBus(file), store
        except FileUnusable as error:
            raise InvalidInput(f"--data: {error}" if folder else str(error)) from None


@dataclass(frozen=True)
class Options:
    """Options of the command, as given."""

    files: tuple[str, ...] = ()
    flink: str | None = None
    kafka: str | None = None
    group: str | None = None
    kubernetes: bool = False
    namespace: str | None = None
    data: Path | None = None
    listen: str = "127.0.0.1:8080"
    once: bool = False
    seconds: float | None = None
    write: Path | None = None
    html: Path | None = None
    form: Format = Format.TABLE


Notes = Callable[[Sequence[Advice]], Sequence[str]]


@dataclass(frozen=True)
class Key:
    """A key of the screen: what it does, and how; the result is a sentence for the screen."""

    what: str
    act: Callable[[Sequence[Advice]], Awaitable[str]]


@dataclass(eq=False)
class Display:
    """Shows what is known: on a terminal as a screen, else a line where a decision changes. `quiet`: shows nothing."""

    view: View
    clock: Clock
    notes: Notes
    log_level: str
    quiet: bool = False
    keys: Mapping[str, Key] = field(default_factory=dict)
    """Of the screen, where the terminal has keys."""
    _advice: Sequence[Advice] = field(default=(), init=False)
    _result: str = field(default="", init=False)
    """Of the last key."""
    _said: dict[str, tuple[str, float]] = field(default_factory=dict, init=False)

    async def follow(self, stop: Stop, is_over: Callable[[Sequence[Advice]], bool]) -> None:
        """Show until stopped; `is_over` requests the stop."""
        console = terminal()
        with ExitStack() as stack:
            live: Live | None = None
            keys: Keyboard | None = None
            if console.is_terminal and not self.quiet:
                keys = stack.enter_context(keyboard()) if self.keys else None
                live = stack.enter_context(Live(console=console, auto_refresh=False))
                configure_logs("weir", self.log_level)  # from now on above the screen
            pause_seconds = REDRAW_SECONDS
            while not await self._pause(stop, pause_seconds, keys):
                began = time.monotonic()
                try:
                    advice = self._advice = await read_advice(self.view, self.clock)
                except StoreUnavailable:
                    continue  # the log is being read
                if live is not None:
                    named = [f"{name} {key.what}" for name, key in self.keys.items()] if keys is not None else []
                    notes = [*self.notes(advice), *named, *filter(None, [self._result])]
                    live.update(screen(advice, notes), refresh=True)
                elif not self.quiet:
                    self._say(advice)
                if is_over(advice):
                    stop.request("the time is over")
                # With hundreds of applications the services have the processor, not the screen.
                pause_seconds = max(REDRAW_SECONDS, (time.monotonic() - began) / SCREEN_SHARE)

    async def _pause(self, stop: Stop, seconds: float, keys: Keyboard | None) -> bool:
        """Wait, at most until a key was pressed; return whether the stop was requested."""
        if keys is None:
            return await stop.wait(seconds)
        until = time.monotonic() + seconds
        while (left_seconds := until - time.monotonic()) > 0:
            if await stop.wait(min(KEY_SECONDS, left_seconds)):
                return True
            pressed = [key for name in keys.pressed().lower() if (key := self.keys.get(name))]
            if pressed:
                self._result = await pressed[-1].act(self._advice)
                return False
        return stop.requested

    def _say(self, advice: Sequence[Advice]) -> None:
        for each in advice:
            key, now = f"{each.summary.status} {each.plan.code if each.plan else ''}", time.monotonic()
            said, at = self._said.get(each.application, ("", 0.0))
            if key != said or now - at >= LINE_EVERY_SECONDS:
                self._said[each.application] = (key, now)
                say(line(each))


@dataclass(eq=False)
class Session:
    """The tasks beside the services: one writes policies, one shows what they lead to."""

    options: Options
    api: LocalApi
    view: View
    clock: Clock
    documents: Sequence[Document]
    discovery: Discovery | None
    address: str
    log_level: str
    error: CommandError | None = field(default=None, init=False)
    """Why the process ends early, or with a failure."""
    _folder: "PolicyFolder" = field(init=False)
    _began: float = field(default_factory=time.monotonic, init=False)

    def __post_init__(self) -> None:
        self._folder = PolicyFolder(self.options.write or POLICIES)

    async def prepare(self, stop: Stop) -> None:
        """Store the policies of the files, then look for jobs."""
        for document in self.documents:
            refused = await self.api.put(document.application, document.content)
            if refused is not None:
                self.error = InvalidInput(f"{document.place}: {detail_of(refused)}")
                stop.request("a policy was refused")
                return
        if self.discovery is not None:
            await self.discovery.run(stop)

    async def show(self, stop: Stop) -> None:
        """Show what is known until stopped, or until the time of `--for` is over; then print and write it."""
        quiet = self.options.once or self.options.form is not Format.TABLE
        display = Display(self.view, self.clock, self._notes, self.log_level, quiet)
        if self.discovery is not None:
            display.keys = {"w": Key(f"writes the policies to {self._folder.path}", self._write)}
        if not quiet:
            say(f"weir: {self.address}/ is the page; Ctrl-C ends it", error=True)
        await display.follow(stop, self._is_over)
        try:
            await self._end()
        except CommandError as error:
            self.error = error

    def _is_over(self, advice: Sequence[Advice]) -> bool:
        elapsed = time.monotonic() - self._began
        if self.options.seconds is not None:
            return elapsed >= self.options.seconds
        if not self.options.once:
            return False
        is_settled = self.discovery is None or self.discovery.is_settled
        return elapsed >= ONCE_SECONDS or (is_settled and bool(advice) and all(each.is_explained for each in advice))

    def _notes(self, advice: Sequence[Advice]) -> list[str]:
        notes = [f"{time.monotonic() - self._began:.0f} s · {self.address}/ · Ctrl-C ends it"]
        if self.discovery is not None:
            again = "" if self.discovery.has_found else _LOOKS_AGAIN
            found = self.discovery.sentence and self.discovery.sentence + again
            notes.append(found or f"{self.discovery.source.place}: being read")
        elif not advice:
            notes.append("no policy yet: weir apply -f FILE, or weir run with --flink, --kafka or --kubernetes")
        return notes

    async def _end(self) -> None:
        """Print and write what `--once`, `--html` and `--write` ask for."""
        if self.error is not None:
            return
        try:
            advice = await read_advice(self.view, self.clock)
        except StoreUnavailable as error:
            raise CommandError(str(error)) from None
        if self.options.form is not Format.TABLE:
            sys.stdout.write(text_of([each.document() for each in advice], self.options.form))
        elif self.options.once:
            for each in advice:
                say(line(each))
        if self.options.once and not advice:
            self.error = CommandError(self._why_nothing())
        if self.options.html is not None:
            say(await write_page(self.options.html, self.view, self.clock), error=True)
        if self.options.write is not None:
            say(self._folder.write(advice, await self.view.policies()), error=True)

    async def _write(self, advice: Sequence[Advice]) -> str:
        """Write the policies now; return what was done, or why it was not."""
        try:
            return self._folder.write(advice, await self.view.policies())
        except (CommandError, StoreUnavailable) as error:
            return str(error)

    def _why_nothing(self) -> str:
        if self.discovery is None:
            return "there is no policy: name one with -f, or a place with --flink, --kafka or --kubernetes"
        option, sentence = self.discovery.source.option, self.discovery.sentence
        if sentence and not self.discovery.has_found:
            return sentence if sentence.startswith("--") else f"{option}: {sentence}"
        return f"{option}: nothing was read at {self.discovery.source.place} in this time: give it longer (--for 2m)"


async def write_page(path: Path, view: View, clock: Clock, note: str = "") -> str:
    """Write what is known of all applications as one file (`--html`); return what was done as a sentence. `CommandError` if it
    cannot be read or written."""
    try:
        content = await report(view, clock, HistoryLimits(history_count=MAX_HISTORY_COUNT), note=note)
        count = len(await view.applications())
    except StoreUnavailable as error:
        raise CommandError(f"--html: {error}") from None
    await asyncio.to_thread(save_page, path, content)
    return f"{counted(count, 'application')} on the page {path}"


_LOOKS_AGAIN = f"; Weir looks again every {LOOK_SECONDS:g} s"


@dataclass(eq=False)
class PolicyFolder:
    """The folder for the policies of what was found. A file that the user has changed is never replaced."""

    path: Path
    _written: dict[Path, str] = field(default_factory=dict, init=False)

    def check(self) -> None:
        """Create the folder. `InvalidInput` if it cannot be written."""
        with self._refusals():
            self.path.mkdir(parents=True, exist_ok=True)
            with NamedTemporaryFile(dir=self.path, prefix=".weir-"):
                pass

    def write(self, advice: Sequence[Advice], policies: Sequence[ScalingPolicy]) -> str:
        """Write the policy of each application that was found into a file; return what was done as a sentence.
        `InvalidInput` if the folder cannot be written."""
        labelled = {policy.application: policy for policy in policies if LABEL in policy.metadata.labels}
        found = [each for each in advice if each.application in labelled]
        kept: list[str] = []
        with self._refusals():
            if found:
                self.path.mkdir(parents=True, exist_ok=True)
            for each in found:
                path = self.path / f"{each.application.replace('/', '-')}.yaml"
                text = policy_text(each, labelled[each.application])
                if path.exists() and not self._is_own(path, text):
                    kept.append(path.name)
                    continue
                path.write_text(text, encoding="utf-8")
                self._written[path] = text
        if not found:
            return "no policy to write yet: nothing was found"
        done = f"{counted(len(found) - len(kept), 'policy', 'policies')} written to {self.path}"
        return f"{done}; {listed(kept)} differs and stays: delete it to have it written" if kept else done

    def _is_own(self, path: Path, text: str) -> bool:
        """Return whether the file has no change by a user, and may be replaced."""
        try:
            stored = path.read_text(encoding="utf-8")
            return stored == self._written.get(path) or yaml.safe_load(stored) == yaml.safe_load(text)
        except (ValueError, yaml.YAMLError):
            return False

    @contextmanager
    def _refusals(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise InvalidInput(
                f"--write: {self.path} cannot be written: {error.strerror or error}; name another folder"
            ) from None


def policy_text(advice: Advice, policy: ScalingPolicy) -> str:
    """Return the policy that Weir would use, as YAML with its reasons as comments."""
    document = policy.to_document()
    slots = None if advice.analysis is None or advice.analysis.deployment is None else advice.analysis.deployment.slots
    is_group = policy.spec.target.driver is None
    bound = (
        "the partitions that are read, at least 32" if is_group else "32 by default: set it to what the cluster offers"
    )
    if slots is not None and slots.total:
        document["spec"]["bounds"], bound = {"max": slots.total}, "the slots that the cluster has now"
    document["metadata"] = {name: document["metadata"][name] for name in ("namespace", "name")}
    reason = "nothing was decided yet" if advice.plan is None else advice.plan.sentence
    bottleneck = advice.summary.bottleneck or "unknown"
    comments = [
        f"bottleneck: {bottleneck}; {reason}",
        f"bounds.max: {bound}",
        "mode: act lets Weir rescale it; advise only publishes plans",
        *(["mode: act needs a target that scales its instances: kubernetes or endpoint"] if is_group else []),
    ]
    head = "".join(f"# {' '.join(each.split())}\n" for each in comments)
    return head + yaml.safe_dump(document, sort_keys=False, allow_unicode=True)


def run_single(options: Options) -> int:
    """Run until stopped; returns the exit code."""
    return asyncio.run(_run(options))


async def _run(options: Options) -> int:
    documents = checked(options.files) if options.files else []
    if options.html is not None:
        check_place(options.html, "--html", None)
    if options.write is not None:
        PolicyFolder(options.write).check()
    host, port = address_of(options.listen)
    settings = of_environment(SingleSettings, http_host=host, http_port=port)
    clock = SystemClock()
    async with AsyncExitStack() as stack:
        bus, store = stack.enter_context(log_and_store(options.data, clock))
        source = await _source(options, settings, clock)
        if source is not None:
            stack.push_async_callback(source.close)
        one = compose(settings, bus, store, clock, source.settings if isinstance(source, Workloads) else {})
        try:
            discovery = None if source is None else Discovery(source, one.api)
            if discovery is not None:
                found = await discovery.source.find()
                if not found.candidates:
                    say(f"weir: {found.sentence}{_LOOKS_AGAIN}", error=True)
        except CommandError:
            await one.close()
            raise
        view = View(store, settings.partitions, of_environment(KnowledgeSettings).prices)
        session = Session(options, one.api, view, clock, documents, discovery, page_of(settings), settings.log_level)
        tasks = {**one.tasks, "policies": session.prepare, "screen": session.show}
        code = await run_service("weir", settings, app=one.app, tasks=tasks, on_stopped=one.close)
        if session.error is not None:
            raise session.error
        return code


async def _source(options: Options, settings: SingleSettings, clock: Clock) -> Source | None:
    """Return what is looked at for applications; None: only the policies of files. `CommandError` for a place that cannot be
    looked at."""
    if options.kubernetes:
        return await Workloads.open(options.namespace)
    known = settings.broker_credentials
    brokers = None if options.kafka is None else Brokers.of(options.kafka, options.group, known)
    if options.flink is not None:
        return FlinkJobs(options.flink, brokers)
    return None if brokers is None else ConsumerGroups(brokers, clock, known)


def address_of(address: str) -> tuple[str, int]:
    """Return host and port of `--listen`, a free one for port 0; `InvalidInput` if it is no address, or one that cannot be had."""
    named, _, digits = address.rpartition(":")
    if not named or not digits.isascii() or not digits.isdigit() or int(digits) > 65535:
        raise InvalidInput(f"--listen: {address!r} is no address: write host:port, such as 127.0.0.1:8080")
    host, port = named.strip("[]"), int(digits)
    try:
        with listen(host, port) as bound:
            return host, bound.getsockname()[1]
    except PortInUse as error:
        raise InvalidInput(f"--listen: {error}: name another address, such as 127.0.0.1:8081") from None


def page_of(settings: SingleSettings) -> str:
    """Return the address of the page of this process, without its last slash."""
    scheme = "http" if settings.http_certificate_file is None else "https"
    host = settings.http_host
    return f"{scheme}://{f'[{host}]' if ':' in host else host}:{settings.http_port}"
