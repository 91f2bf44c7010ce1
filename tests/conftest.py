"""Shared by all tiers. A tier without its means is skipped with one line, or fails where it is required."""

import gc
import os
import shutil
from collections.abc import Generator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from testbed.bootstrap import CACHE
from tests import effort

REQUIRED = frozenset(tier.strip() for tier in os.environ.get("WEIR_REQUIRE", "").split(",") if tier.strip())
MEANS = {
    "integration": ("kafka", "flink", "spark"),
    "e2e": ("kafka", "flink", "spark", "job"),
    "containers": ("kafka", "flink"),
    "kubernetes": (),
    "node": ("kafka", "flink"),
}
"""The slow tiers, each by the name of its folder, and the jars it cannot do without. `kubernetes` and `node` need
programs besides."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--thorough", action="store_true", help="try all examples there are, not a few: minutes")
    parser.addoption(
        "--explore", type=int, default=0, metavar="TIMES", help="try so many times as many, others in each run"
    )


def pytest_configure(config: pytest.Config) -> None:
    """Choose how much is tried. Refuse a misspelt tier in WEIR_REQUIRE, which would be skipped in silence."""
    gc.disable()  # until the tests are collected: next to nothing of what that makes is garbage
    effort.choose(thorough=config.getoption("--thorough"), explore=config.getoption("--explore"))
    if unknown := REQUIRED - set(MEANS):
        raise pytest.UsageError(
            f"WEIR_REQUIRE: no such tier: {', '.join(sorted(unknown))}; there are {', '.join(MEANS)}"
        )


@cache
def _missing(tier: str) -> str | None:
    if tier == "containers":
        from testbed.docker import unanswered

        if reason := unanswered():
            return reason
    if tier == "kubernetes":
        from testbed.kubernetes import missing

        return missing()
    if tier == "node":
        from tests.node.images import missing as missing_for_node

        if reason := missing_for_node():
            return reason
    if shutil.which("java") is None:
        return "no java on the PATH: install Java 17"
    for part in MEANS[tier]:
        if not list((CACHE / "jars" / part).glob("*.jar")):
            return f"no jars of {part}: run `make setup`"
    return None


_FUZZ = Path(__file__).parent / "unit" / "fuzz"
"""Its tests try invalid input by the hundred, which takes a tenth of the fast tests' time."""


def _tier(path: Path) -> str | None:
    """The slow tier a file belongs to: the folder it is in below this one."""
    here = Path(__file__).parent
    below = path.relative_to(here).parts if path.is_relative_to(here) else ()
    return below[0] if below and below[0] in MEANS else None


def _alone(nodeid: str) -> bool:
    return "::TestAlone::" in nodeid


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Give `--dist loadscope` a unit for Kubernetes, one for each file of the integration tests, or for a folder whose
    `conftest.py` starts something, and a last one for what is judged by real time or shares the machine's daemons: it runs
    alone. Each worker has its own Kafka, Flink and Redis."""
    if config.getoption("dist") != "loadscope":
        return None
    from xdist.scheduler import LoadScopeScheduling

    class ByTier(LoadScopeScheduling):  # type: ignore[misc, unused-ignore]
        def _split_scope(self, nodeid: str) -> str:
            path = config.rootpath / nodeid.partition("::")[0]
            tier = _tier(path)
            if tier is None:
                return nodeid
            if tier == "integration" and not _alone(nodeid):
                return str(path.parent if path.with_name("conftest.py").exists() else path)
            return "kubernetes" if tier == "kubernetes" and not _alone(nodeid) else "alone"

        def _reschedule(self, node: Any) -> None:
            """Give out "alone" once the other workers have nothing left: a worker that is shutting down still has tests to run."""
            if list(self.workqueue) != ["alone"]:
                super()._reschedule(node)
            elif self._pending(node) <= 2:  # the number at which a worker gets its next unit
                staying = [each for each in self.nodes if not each.shutting_down]
                if len(staying) > 1:
                    node.shutdown()
                elif staying and not any(self._pending(each) for each in self.nodes if each is not staying[0]):
                    super()._reschedule(staying[0])

        def _pending(self, node: Any) -> int:
            return int(self._pending_of(self.assigned_work[node]))

    return ByTier(config, log)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark by folder, so that a forgotten marker moves no slow test to a fast tier. Drop `thorough` tests from a quick
    run."""
    for item in items:
        if tier := _tier(item.path):
            item.add_marker(tier)
        if item.path.parent == _FUZZ:
            item.add_marker("thorough")
    items.sort(key=lambda item: _alone(item.nodeid))
    if not effort.thorough():
        config.hook.pytest_deselected(items=[item for item in items if item.get_closest_marker("thorough")])
        items[:] = [item for item in items if not item.get_closest_marker("thorough")]


def pytest_collection_finish() -> None:
    """Exempt modules and tests, which live until the end, from each garbage collection."""
    gc.collect()
    gc.freeze()
    gc.enable()


def pytest_runtest_setup(item: pytest.Item) -> None:
    tier = _tier(item.path)
    if tier and (reason := _missing(tier)):
        pytest.skip(f"{tier}: {reason}")


def _fail_if_required(report: pytest.TestReport | pytest.CollectReport, path: Path) -> None:
    tier = _tier(path)
    if report.skipped and tier in REQUIRED and not hasattr(report, "wasxfail"):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr
        report.outcome = "failed"
        report.longrepr = f"the {tier} tier is required (WEIR_REQUIRE), and this was skipped: {reason}"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Fail a skipped test of a required tier."""
    report = yield
    _fail_if_required(report, item.path)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Fail a module that skips itself in a required tier."""
    report = yield
    _fail_if_required(report, collector.path)
    return report
