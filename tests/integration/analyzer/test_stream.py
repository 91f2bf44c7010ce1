"""The real stream: Kafka, Spark, Kafka. One process after the other works on the same topics, as in a life with
incidents."""

import contextlib
import shutil
import subprocess
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
from confluent_kafka import TopicPartition

from testbed.process import wait_until
from testbed.service import WeirService
from tests.integration.analyzer.conftest import PARTITIONS, SLOW_MACHINE_SECONDS, Bench
from tests.unit.analyzer.story import NOON, Job
from weir_analyzer.core import STATE_VERSION
from weir_contracts import Observation, observation_id
from weir_contracts.topics import ANALYSES, OBSERVATIONS
from weir_runtime.bus import partition_of

JUST_NOW = datetime.now(UTC) - timedelta(minutes=8)  # brokers stamp records with the real time


def observations(application: str, seconds: int, job: Job | None = None) -> list[Observation]:
    """Return a monitor's observations of `application`, every 2 s."""
    job = job or Job()
    observed = []
    for _ in range(seconds // 2):
        job.run_for(2)
        observed.append(_of(application, job.observe()))
    return observed


def _of(application: str, observation: Observation, **changes: Any) -> Observation:
    at = JUST_NOW + (observation.observed_at - NOON)
    run = observation.run
    if run is not None:
        run = run.model_copy(update={"running_since": JUST_NOW + (run.running_since - NOON)})
    values = {"application": application, "observed_at": at, "run": run, "id": observation_id(application, at)}
    return observation.model_copy(update={**values, **changes})


def _stop(service: WeirService) -> float:
    """Ask it to end; how long it took."""
    begin = time.monotonic()
    service.stop()
    return time.monotonic() - begin


@pytest.fixture(scope="module")
def first(bench: Bench) -> Iterator[WeirService]:
    """The first process, for the stories that need no incident."""
    with bench.service() as service:
        service.wait_ready(SLOW_MACHINE_SECONDS)
        yield service


def test_observations_become_analyses_in_order(bench: Bench, first: WeirService) -> None:
    """A minute of a steady job: one analysis each, in order, with headers, trace, and the right numbers at the end."""
    del first
    sent = observations("shop/orders", 60)
    bench.send(sent)
    analyses = bench.wait_for("shop/orders", len(sent))
    assert [a.observation_id for a in analyses] == [o.id for o in sent]
    enrich = analyses[-1].operator("enrich")
    assert enrich is not None
    assert enrich.true_processing_rate.value == pytest.approx(600, rel=0.02)
    assert enrich.target_input_rate.value == pytest.approx(300, rel=0.02)
    headers = bench.headers[0]
    assert headers["ce_type"] == ANALYSES.type
    assert headers["traceparent"].split("-")[1] == sent[0].id.hex


def test_analyses_stay_on_their_applications_partition(bench: Bench, first: WeirService) -> None:
    """Spark's sink chooses the partition as all other producers of the loop do: its owner owns all of a key's."""
    del first
    bench.wait_for("shop/orders", 1)
    partition = partition_of("shop/orders", PARTITIONS)
    low, high = bench.consumer.get_watermark_offsets(TopicPartition(ANALYSES.name, partition), timeout=10)
    assert high - low >= len(bench.of("shop/orders"))


def test_duplicates_and_late_observations_are_ignored_and_counted(bench: Bench, first: WeirService) -> None:
    """Sent twice and out of order: each is analysed once, at its time, and the rest is counted."""
    del first
    sent = observations("shop/twice", 20)
    bench.send([*sent[:6], sent[2], sent[5], *sent[6:], sent[0]])
    more = observations("shop/twice", 22)[-1]
    bench.send([more])
    bench.wait(lambda: any(a.observation_id == more.id for a in bench.of("shop/twice")))
    analyses = bench.of("shop/twice")
    assert [a.observation_id for a in analyses] == [o.id for o in [*sent, more]]
    assert analyses[-1].dropped_observations == 3


def test_one_bad_application_harms_no_other(bench: Bench, first: WeirService) -> None:
    """Rubbish, a foreign key, a tombstone and no key at all, among good ones: dead letters here, analyses there."""
    del first
    good = observations("shop/good", 10)
    bench.send(good[:2])
    bench.raw("shop/bad", b"\x00 not json")
    bench.raw("shop/bad", b'{"application": "shop/bad"}')
    bench.raw("shop/other", good[0].model_dump_json().encode())
    bench.raw("shop/bad", None)
    bench.raw(None, b"{}")
    bench.send(good[2:])
    bench.wait(lambda: len(bench.of("shop/good")) == len(good) and len(bench.letters) >= 5)
    assert [a.observation_id for a in bench.of("shop/good")] == [o.id for o in good]
    letters = {(letter.key, letter.field) for letter in bench.letters}
    assert {("shop/bad", None), ("shop/bad", "id"), ("shop/other", "application")} <= letters
    assert all(letter.topic == OBSERVATIONS.name and letter.reason for letter in bench.letters)


def test_a_newer_observation_is_sent_to_the_dead_letter_topic(bench: Bench, first: WeirService) -> None:
    """Though readable: the worker refuses it, and the service stays ready."""
    observation = observations("shop/future", 2)[0]
    bench.raw("shop/future", observation.model_dump_json().encode(), {"ce_type": "dev.weir.observations.v1"})
    bench.wait(lambda: any(letter.key == "shop/future" for letter in bench.letters))
    (letter,) = [letter for letter in bench.letters if letter.key == "shop/future"]
    assert letter.code == "newer-version"
    assert bench.of("shop/future") == []
    assert httpx.get(f"{first.url}/health/ready", timeout=5).status_code == 200


def test_a_killed_driver_is_started_again(bench: Bench, first: WeirService) -> None:
    """Spark's JVM dies: the service notices, starts another and goes on from the checkpoint."""
    before = len(bench.of("shop/orders"))
    drivers = [p for p in psutil.Process(first.pid).children(recursive=True) if p.name() == "java"]
    assert len(drivers) == 1
    drivers[0].kill()
    late = observations("shop/orders", 70)[-5:]
    bench.send(late)
    analyses = bench.wait_for("shop/orders", before + len(late))
    assert [a.observation_id for a in analyses[before:]] == [o.id for o in late]
    enrich = analyses[-1].operator("enrich")
    assert enrich is not None
    assert enrich.true_processing_rate.value == pytest.approx(600, rel=0.02)


def test_a_killed_process_goes_on_from_its_checkpoint_and_reports_lost_observations(
    bench: Bench, first: WeirService
) -> None:
    """Killed like a crash; while it is away the log is cut. The next one keeps what was learned, counts the gap, and
    learns nothing across it."""
    before = bench.of("shop/orders")
    first.process.kill()
    job = Job()
    unread = observations("shop/orders", 100, job)[35:]
    bench.send(unread)
    partition = partition_of("shop/orders", PARTITIONS)
    _, end = bench.consumer.get_watermark_offsets(TopicPartition(OBSERVATIONS.name, partition), timeout=10)
    cut = TopicPartition(OBSERVATIONS.name, partition, end - 5)
    next(iter(bench.admin.delete_records([cut]).values())).result(30)
    with bench.service() as service:
        analyses = bench.wait_for("shop/orders", len(before) + 5)
        assert _stop(service) < 15
    assert [a.observation_id for a in analyses[len(before) :]] == [o.id for o in unread[-5:]]
    behind = analyses[len(before)]
    assert behind.has("retention-gap")
    assert behind.dropped_observations == len(unread) - 5
    assert not analyses[-1].has("retention-gap")
    enrich = behind.operator("enrich")
    assert enrich is not None
    assert [(p.parallelism, round(p.records_per_second)) for p in enrich.capacities] == [(1, 600)]
    assert behind.window.samples == 0


def test_another_split_of_the_state_is_seeded_from_the_analyses(bench: Bench) -> None:
    """A new checkpoint, as after its loss: what was learned comes back from the topic, what was analysed is not again.
    A state of an older version is not read either, and it says so."""
    before = bench.of("shop/orders")
    (present,) = (bench.folder / "state").iterdir()
    older = present.with_name(present.name.replace(f"-v{STATE_VERSION}", "-v0"))
    shutil.copytree(present, older)
    with bench.service(shuffle_partitions=3) as service:
        service.wait_ready(SLOW_MACHINE_SECONDS)
        fresh = observations("shop/orders", 110)[-2:]
        bench.send(fresh)
        analyses = bench.wait_for("shop/orders", len(before) + 2)
        assert _stop(service) < 15
    assert [a.observation_id for a in analyses[len(before) :]] == [o.id for o in fresh]
    enrich = analyses[-1].operator("enrich")
    assert enrich is not None
    assert [(p.parallelism, round(p.records_per_second)) for p in enrich.capacities] == [(1, 600)]
    assert analyses[-1].edges[0].selectivity.value == pytest.approx(1, rel=0.02)
    assert sorted(p.name for p in (bench.folder / "state").iterdir())[-1].count("-s3-") == 1
    unused = ", ".join(sorted([older.name, present.name]))
    reported = f"seeded from the latest analyses; not used, as partitions, split or version differ: {unused}"
    assert reported in service.process.log.read_text()
    shutil.rmtree(older)


@pytest.fixture
def small_disk(bench: Bench) -> Iterator[Path]:
    """A folder on a separate disk that is soon full."""
    folder = bench.folder / "small"
    folder.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", folder], check=False).returncode != 0:
        pytest.skip("no file system can be mounted here")
    yield folder
    subprocess.run(["umount", "--lazy", folder], check=True)


def test_a_full_disk_costs_no_checkpoint(bench: Bench, small_disk: Path) -> None:
    """The stream dies of it again and again, and says of what; with room again it goes on from where it was."""
    observed = observations("shop/full", 60)
    with bench.service(checkpoint="small") as service:
        service.wait_ready(SLOW_MACHINE_SECONDS)
        bench.send(observed[:20])
        bench.wait_for("shop/full", 20)
        (checkpoint,) = (each for each in small_disk.iterdir() if not each.name.startswith("warm-up"))
        log = service.process.log
        wait_until(lambda: '"event": "batch"' in log.read_text(), timeout_seconds=30, what="a finished batch")
        with (small_disk / "ballast").open("wb", buffering=0) as ballast, contextlib.suppress(OSError):
            while True:
                ballast.write(bytes(65_536))
        bench.send(observed[20:25])
        deaths = lambda: log.read_text().count("stream-died")  # noqa: E731
        wait_until(lambda: deaths() >= 4, timeout_seconds=SLOW_MACHINE_SECONDS, what="four deaths")
        readiness = httpx.get(f"{service.url}/health/ready").text
        (small_disk / "ballast").unlink()
        analyses = bench.wait_for("shop/full", 25)
        _stop(service)
    assert "No space left" in readiness
    assert [a.observation_id for a in analyses] == [o.id for o in observed[:25]]
    assert analyses[-1].window.samples > 10
    assert [each.name for each in small_disk.iterdir() if "unusable" in each.name] == []
    assert checkpoint.is_dir()


def test_a_damaged_checkpoint_is_set_aside(bench: Bench) -> None:
    """Its log of offsets cannot be read: it is renamed, and a new one begins with what was learned."""
    observed = observations("shop/damaged", 60)
    with bench.service(checkpoint="damaged") as service:
        service.wait_ready(SLOW_MACHINE_SECONDS)
        bench.send(observed[:20])
        bench.wait_for("shop/damaged", 20)
        _stop(service)
    (checkpoint,) = (bench.folder / "damaged").iterdir()
    newest = max((checkpoint / "offsets").glob("[0-9]*"), key=lambda path: int(path.name))
    newest.write_text("v1\n")
    for checksum in (checkpoint / "offsets").glob(".*.crc"):
        checksum.unlink()
    with bench.service(checkpoint="damaged") as service:
        service.wait_ready(SLOW_MACHINE_SECONDS)
        bench.send(observed[20:25])
        analyses = bench.wait_for("shop/damaged", 25)
        _stop(service)
        reported = service.process.log.read_text()
    assert "state-set-aside" in reported
    assert any("unusable" in each.name for each in (bench.folder / "damaged").iterdir())
    assert [a.observation_id for a in analyses[20:]] == [o.id for o in observed[20:25]]
