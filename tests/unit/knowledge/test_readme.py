"""The README agrees with the code."""

from pathlib import Path

from fastapi.routing import APIRoute

from tests.unit.knowledge.direct_log import changes_of
from tests.unit.knowledge.memory_store import MemoryStore
from weir_knowledge.applications_api import applications_router
from weir_knowledge.events_api import events_router
from weir_knowledge.imports_api import imports_router
from weir_knowledge.policies_api import policies_router
from weir_knowledge.service import READ
from weir_knowledge.settings import KnowledgeSettings
from weir_runtime.clock import FakeClock
from weir_runtime.settings import table

README = (Path(__file__).parents[3] / "services" / "knowledge" / "README.md").read_text()


def test_the_settings_are_the_ones_there_are() -> None:
    """The table is generated; print it again with weir_runtime.settings.table(KnowledgeSettings, own_only=True)."""
    assert table(KnowledgeSettings, own_only=True) in README


def test_every_endpoint_and_topic_is_named() -> None:
    """The distinguishing part of each endpoint is in the table."""
    changes = changes_of(MemoryStore(), FakeClock())
    routers = (
        policies_router(changes),
        applications_router(changes),
        imports_router(changes),
        events_router(changes.view.store),
    )
    paths = {route.path for router in routers for route in router.routes if isinstance(route, APIRoute)}
    assert len(paths) >= 12
    for path in paths:
        last = path.removesuffix("/{namespace}/{name}").rsplit("/", 1)[-1]
        assert f"/{last}" in README, path
    for topic in READ:
        assert topic.removesuffix(".v1alpha1") in README
