"""TaskManagers as replicas with CPU and memory."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weir_engines.flink.metrics import MAX_TASK_MANAGERS, METRICS, TaskManager, task_managers
from weir_engines.flink.rest import Unreadable


def _listed(**fields: object) -> dict[str, object]:
    return {
        "id": "10.0.0.1:6122-a1",
        "hardware": {"cpuCores": 4},
        "totalResource": {"cpuCores": 2.0},
        "memoryConfiguration": {"totalProcessMemory": 1000},
        **fields,
    }


def test_a_task_manager_with_its_load() -> None:
    (found,) = task_managers({"taskmanagers": [_listed()]})
    pod = found.pod(dict(zip(METRICS, (0.25, 200.0, 40.0, 2.0), strict=True)))
    assert (pod.name, pod.ready, pod.cpu_cores, pod.cpu_request_cores) == ("10.0.0.1:6122-a1", True, 1.0, 2.0)
    assert (pod.memory_bytes, pod.memory_limit_bytes) == (242, 1000)


def test_missing_metrics_are_unknown() -> None:
    pod = TaskManager("a", 4.0, None, None).pod({})
    assert (pod.cpu_cores, pod.memory_bytes, pod.cpu_request_cores, pod.memory_limit_bytes) == (None, None, None, None)


@pytest.mark.parametrize("called", [None, "", "../jobs", "a/b", "a?b", "x" * 300, "a..b"])
def test_an_id_that_is_unsafe_in_a_path_is_left_out(called: object) -> None:
    assert task_managers({"taskmanagers": [_listed(id=called)]}) == []


def test_of_a_large_cluster_a_part_is_read() -> None:
    listed = [_listed(id=f"t{i}") for i in range(500)]
    assert len(task_managers({"taskmanagers": listed})) == MAX_TASK_MANAGERS


_ENTRY = st.dictionaries(
    st.sampled_from(["id", "hardware", "totalResource"]), st.one_of(st.none(), st.text(), st.integers())
)


@given(st.lists(_ENTRY, max_size=3))
def test_entries_of_any_form(listed: list[dict[str, object]]) -> None:
    for each in task_managers({"taskmanagers": listed}):
        assert each.pod({}).name == each.id


def test_no_list_is_an_error() -> None:
    with pytest.raises(Unreadable, match="/taskmanagers"):
        task_managers({"errors": ["Not found"]})
