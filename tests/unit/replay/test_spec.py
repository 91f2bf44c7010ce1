"""Applications as files: fields, defaults and errors."""

from pathlib import Path

import pytest
import yaml

from weir_replay.simulator import PRESETS, Application, InvalidApplication, chain, parse
from weir_replay.simulator.capacity import OfflineOptimum
from weir_runtime.documents import read_file

SMALL = """
operators:
  - {name: in, service_seconds: 0.0001, source: {topic: orders, partitions: 4}}
  - {name: work, service_seconds: 0.002, contention: 0.05, selectivity_over_time: [[0, 1.0], [100, 3.0]]}
links:
  - {source: in, target: work, ship: hash}
cluster: {slots: 8, restart_seconds: 3}
"""


def written(folder: Path, text: str) -> Path:
    path = folder / "application.yaml"
    path.write_text(text)
    return path


def load(path: Path) -> Application:
    return parse(read_file(path), str(path))


def test_a_file_may_set_every_field(tmp_path: Path) -> None:
    """An omitted field has its default; drift is a straight line between its points."""
    application = load(written(tmp_path, SMALL))
    assert application.topology().names == ["in", "work"]
    assert application.topology().is_keyed("work")
    assert application.topology().operator("in").source_partitions == 4
    assert [application.operators[1].selectivity_at(t) for t in (-1, 0, 50, 100, 1e6)] == [1.0, 1.0, 2.0, 3.0, 3.0]
    assert (application.cluster.slots, application.cluster.restart_seconds) == (8, 3.0)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("operators.1.service_seconds=-1", "operators.1.service_seconds: must be greater than 0"),
        ("operators.1.speed=3", "operators.1.speed: is not a field"),
        ("operators.1.max_parallelism=0", "operators.1.max_parallelism"),
        ("operators.0.source.weights=[1, 2]", "weights: 2 of them for 4 partitions"),
        ("operators.0.source=null", "operators.0.source: 'in' has no input, so it needs a topic to read"),
        ("links.0.target=nobody", "links.0.target: unknown operator 'nobody'"),
        ("links.0.source=work", "links.0: closes a cycle: work → work"),
        ("operators.1.name=in", "operators: names must be unique"),
        ("links.0.ship=pigeon", "links.0.ship"),
        ("operators.1.window_keys=10", "window_keys: is of a window"),
        ("operators.1.parallelism=9", "cluster.slots: the application starts with 9 and there are 8"),
        ("operators.1.parallelism=true", "operators.1.parallelism: must be an integer"),
        ("operators.1.parallelism='2'", "operators.1.parallelism: must be an integer"),
        ("cluster.new_slot_seconds=60", "cluster: new_slot_seconds: 60 is longer than stabilization_seconds 1"),
        ("operators.1.service_seconds=.nan", "operators.1.service_seconds"),
    ],
)
def test_an_error_names_its_field(tmp_path: Path, change: str, message: str) -> None:
    """File and field, in one line."""
    where, _, value = change.partition("=")
    *path, last = [int(part) if part.isdigit() else part for part in where.split(".")]
    changed = yaml.safe_load(SMALL)
    at = changed
    for part in path:
        at = at[part]
    at[last] = yaml.safe_load(value)
    file = written(tmp_path, yaml.safe_dump(changed))
    with pytest.raises(InvalidApplication) as error:
        load(file)
    assert str(file) in str(error.value)
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("links", "message"),
    [
        ("[{source: a, target: b}, {source: b, target: c}, {source: c, target: b}]", "links.2: closes a cycle: "),
        (
            "[{source: a, target: c}, {source: c, target: b}]",
            "links.1: 'c' is listed after 'b': operators must be listed",
        ),
    ],
    ids=["cycle", "order"],
)
def test_a_cycle_and_a_wrong_order_have_different_errors(tmp_path: Path, links: str, message: str) -> None:
    """Both by the file's own field, and a cycle with the operators on it."""
    operators = "[{name: a, service_seconds: 1, source: {topic: t}}, {name: b, service_seconds: 1}, {name: c, service_seconds: 1}]"
    file = written(tmp_path, f"{{operators: {operators}, links: {links}}}")
    with pytest.raises(InvalidApplication) as error:
        load(file)
    assert f"{file}: {message}" in str(error.value)
    assert ("b → c → b" in str(error.value) or "c → b → c" in str(error.value)) == ("cycle" in message)


@pytest.mark.parametrize("text", ["- 1", ""], ids=["a list", "nothing"])
def test_an_unreadable_file_is_refused(tmp_path: Path, text: str) -> None:
    """With the file's name."""
    file = written(tmp_path, text)
    with pytest.raises(InvalidApplication, match=r"application\.yaml"):
        load(file)


def test_an_operator_without_its_time_is_the_only_problem(tmp_path: Path) -> None:
    """It counts as an operator: "at least 1 item" would be false."""
    with pytest.raises(InvalidApplication) as error:
        load(written(tmp_path, "operators: [{name: a, source: {topic: t}}]"))
    assert str(error.value).endswith("application.yaml: operators.0.service_seconds: is required")


@pytest.mark.parametrize("name", PRESETS)
def test_the_ready_made_ones_stand(name: str) -> None:
    """They can be started with any parallelism their cluster has slots for."""
    assert PRESETS[name](4).started_with(2).parallelism == dict.fromkeys(PRESETS[name](1).parallelism, 2)


def test_the_offline_optimum_is_the_smallest_parallelism_that_carries_a_load() -> None:
    """Enrich does 500/s alone and 500·p / (1 + 0.02·(p − 1)) on p: 900/s need 2, 1,000/s need 3; the rest needs 1."""
    optimum = OfflineOptimum(chain(1), 16)
    assert optimum.parallelism(900)["enrich"] == 2
    assert optimum.parallelism(1000)["enrich"] == 3
    assert optimum.slots(1000) == 3


def test_the_readme_s_example_can_be_run(tmp_path: Path) -> None:
    """It is read as it stands there."""
    readme = (Path(__file__).parents[3] / "replay" / "README.md").read_text()
    example = readme.split("```yaml\n")[1].split("```")[0]
    assert load(written(tmp_path, example)).operators[1].state_bytes == 50e6
