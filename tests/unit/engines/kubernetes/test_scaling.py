"""Workloads through an API that answers as a real one does not, or no longer does."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from typing import Any

import pytest
from structlog.testing import capture_logs

from weir_contracts.target import WorkloadRef
from weir_engines.kubernetes.api import ApiFailed, Call
from weir_engines.kubernetes.scaling import ApiWorkloads

DEPLOYMENT = WorkloadRef(kind="Deployment", name="orders")
KINDS = {
    "kind": "APIGroupDiscoveryList",
    "items": [
        {
            "metadata": {"name": "apps"},
            "versions": [
                {
                    "version": "v1",
                    "resources": [
                        {
                            "resource": "deployments",
                            "responseKind": {"kind": "Deployment"},
                            "scope": "Namespaced",
                            "subresources": [{"subresource": "scale"}],
                        }
                    ],
                }
            ],
        }
    ],
}


class _Api:
    """API whose reads fail as `failures` say, by resource."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.failures: dict[str, tuple[int, str]] = {}
        self.silent = False
        self.is_watch_denied = False
        self.pages_of: dict[str, list[dict[str, Any]]] = {}
        """Pages of a resource's list, instead of an empty one."""

    async def get(self, call: Call, path: str, query: Mapping[str, Any] | None = None, **_: Any) -> Any:
        self.calls.append(path)
        await asyncio.sleep(0)
        if self.silent:
            raise ApiFailed(call, f"cannot {call}: no answer within 5 s")
        if call.resource in self.failures:
            status, reason = self.failures[call.resource]
            raise ApiFailed(call, f"cannot {call} ({status})", status, reason)
        if call.verb == "list" and (found := self.pages_of.get(call.resource)):
            number = int((query or {}).get("continue", "0"))
            following = {"continue": str(number + 1)} if number + 1 < len(found) else {}
            return {**found[number], "metadata": {"resourceVersion": "1", **following}}
        if call.verb == "get":
            return {
                "metadata": {"name": call.name, "uid": "u"},
                "spec": {"replicas": 1},
                "status": {"readyReplicas": 1},
            }
        return KINDS if call.verb == "discover" else {"metadata": {"resourceVersion": "1"}, "items": []}

    async def watch(self, call: Call, *_: Any) -> AsyncGenerator[tuple[str, Mapping[str, Any]], None]:
        if self.is_watch_denied:
            raise ApiFailed(call, f"may not {call} (403)", 403, "Forbidden")
        yield "OPENED", {}
        await asyncio.Event().wait()

    async def close(self) -> None:
        return None


@pytest.fixture
def api() -> _Api:
    return _Api()


@pytest.fixture
async def workloads(api: _Api) -> AsyncIterator[ApiWorkloads]:
    found = ApiWorkloads(api)  # type: ignore[arg-type]
    yield found
    await found.close()


async def test_a_proxys_404_does_not_mean_that_the_workload_is_gone(api: _Api, workloads: ApiWorkloads) -> None:
    """Else an action would end as if its workload had been deleted."""
    api.failures["deployments"] = (404, "")
    with pytest.raises(ApiFailed):
        await workloads.read("shop", [DEPLOYMENT])
    api.failures["deployments"] = (404, "NotFound")
    assert await workloads.read("shop", [DEPLOYMENT]) == {}


async def test_many_autoscalers_are_read_in_pages(api: _Api, workloads: ApiWorkloads) -> None:
    """1,500 HPAs in a namespace are larger than one answer may be: no target in it could be observed."""
    api.pages_of["horizontalpodautoscalers"] = [
        {"items": [{"metadata": {"name": f"h-{name}"}, "spec": {"scaleTargetRef": {"name": name}}}]}
        for name in ("other", "orders")
    ]
    found = await workloads.read("shop", [DEPLOYMENT])
    assert found["orders"].autoscaler == "HorizontalPodAutoscaler h-orders"


async def test_pods_that_cannot_be_watched_are_unknown(api: _Api, workloads: ApiWorkloads) -> None:
    """The first list of them would be out of date while an action waits for them: the missing right is named."""
    api.is_watch_denied = True
    with pytest.raises(ApiFailed, match="may not watch pods in namespace shop"):
        async with asyncio.timeout(10):
            while await workloads.read("shop", [DEPLOYMENT]):  # noqa: ASYNC110 - the watch signals nothing
                await asyncio.sleep(0)


async def test_many_readers_of_a_silent_api_server_wait_once(api: _Api, workloads: ApiWorkloads) -> None:
    """Else each policy's discovery would wait for its own timeout, one after another."""
    api.silent = True
    found = await asyncio.gather(*(workloads.read("shop", [DEPLOYMENT]) for _ in range(50)), return_exceptions=True)
    assert {str(each) for each in found} == {"cannot discover the kinds of the cluster: no answer within 5 s"}
    assert api.calls == ["/apis"]


async def test_without_the_right_to_list_scaledobjects_it_is_named(api: _Api, workloads: ApiWorkloads) -> None:
    """A cluster without KEDA answers 404 to a role that has the right."""
    api.failures["deployments"] = (404, "NotFound")
    api.failures["scaledobjects"] = (404, "")
    with capture_logs() as lines:
        await workloads.read("shop", [DEPLOYMENT])
    assert lines == []
    api.failures["scaledobjects"] = (403, "Forbidden")
    with capture_logs() as lines:
        for _ in range(2):
            await workloads.read("away", [DEPLOYMENT])
    assert [(line["event"], line["missing_right"]) for line in lines] == [
        ("scaledobjects-unknown", "list scaledobjects in namespace away")
    ]
