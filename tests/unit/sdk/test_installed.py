"""Planners of installed packages are found by their entry points; one that cannot be used harms no other."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.installed import GOOD, install
from weir_planners import metadata
from weir_sdk import InvalidParameters, testing
from weir_sdk import installed as registry

pytestmark = pytest.mark.thorough

PROJECT = Path(__file__).parents[3]


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder of installed packages next to the environment's own."""
    monkeypatch.syspath_prepend(str(tmp_path))
    registry._found.cache_clear()
    yield tmp_path
    registry._found.cache_clear()


def test_the_built_in_planners_are_those_of_the_project() -> None:
    """As the environment's metadata say; after a change of pyproject.toml `make environment` writes them again."""
    assert sorted(registry.built_in()) == sorted(metadata.planners(PROJECT / "pyproject.toml"))
    assert registry.problems() == ()


def test_an_installed_package_brings_a_planner(site: Path) -> None:
    """It is asked as a built-in one is, with its parameters checked."""
    install(site, "good_hand", GOOD, steady_hand="good_hand:plan")
    found = registry.planner_of("steady-hand")
    assert (found.package, found.is_built_in, found.reads) == ("good_hand", False, frozenset())
    plan_request = testing.request(planner={"name": "steady-hand", "parameters": {"parallelism": 5}})
    assert set((registry.ask(plan_request, "steady-hand").parallelism or {}).values()) == {5}
    with pytest.raises(InvalidParameters, match="parallelism"):
        registry.parse_parameters("steady-hand", {"parallelism": "five"})


@pytest.mark.parametrize(
    ("source", "target", "message"),
    [
        ("import a_module_that_is_not_there", "bad_hand:plan", "ModuleNotFoundError: No module named 'a_module_that"),
        ("def plan(: pass", "bad_hand:plan", "SyntaxError"),
        ("raise SystemExit(3)", "bad_hand:plan", "SystemExit: 3"),
        ("plan = 1 / 0", "bad_hand:plan", "ZeroDivisionError"),
        ("other = 1", "bad_hand:plan", "AttributeError"),
        ("plan = 3", "bad_hand:plan", "InvalidPlanner: 3 cannot plan"),
        (None, "bad_hand:plan", "ModuleNotFoundError"),
        (GOOD, "not a reference", "cannot be used: not a reference: "),
    ],
)
def test_one_that_cannot_be_used_is_named_and_harms_no_other(
    site: Path, monkeypatch: pytest.MonkeyPatch, source: str | None, target: str, message: str
) -> None:
    """The built-in ones and another package's are there as before."""
    monkeypatch.delitem(sys.modules, "bad_hand", raising=False)
    install(site, "bad_hand", source, bad_hand=target)
    install(site, "good_hand", GOOD, steady_hand="good_hand:plan")
    [problem] = registry.problems()
    assert (problem.name, problem.package) == ("bad-hand", "bad_hand")
    assert message in str(problem)
    assert {"rate", "steady-hand"} <= set(registry.installed())
    with pytest.raises(registry.UnknownPlanner, match="planner bad-hand of package bad_hand cannot be used"):
        registry.planner_of("bad-hand")


def test_one_that_exits_does_not_end_the_process(site: Path) -> None:
    """It fails as one that raises."""
    install(site, "leaving_hand", "import sys\ndef plan(request):\n    sys.exit(4)\n", leaving="leaving_hand:plan")
    with pytest.raises(RuntimeError, match=r"called exit\(4\)"):
        registry.ask(testing.request(), "leaving")


def test_a_name_belongs_to_one_package(site: Path) -> None:
    """A package that names a built-in planner does not take its place."""
    install(site, "good_hand", GOOD, rate="good_hand:plan", Steady="good_hand:plan")
    assert registry.planner_of("rate").is_built_in
    assert sorted(str(each) for each in registry.problems()) == [
        "planner Steady of package good_hand cannot be used: good_hand:plan: ValueError: its name may have lower-case letters, "
        "digits, dashes and dots only",
        "planner rate of package good_hand cannot be used: the package weir-autoscaler has a planner of that name",
    ]


def test_a_source_tree_s_planners_are_known_by_written_metadata(tmp_path: Path) -> None:
    """As in an image: the sources on the path, nothing installed."""
    script = [
        sys.executable,
        str(PROJECT / "planners" / "weir_planners" / "metadata.py"),
        str(PROJECT / "pyproject.toml"),
        str(tmp_path),
    ]
    subprocess.run(script, check=True)
    code = (
        f"import sys; sys.path = [{str(tmp_path)!r}] + [p for p in sys.path if 'site-packages' not in p]\n"
        "from importlib.metadata import entry_points\n"
        "print(sorted(p.name for p in entry_points(group='weir.planners') if p.dist.name == 'weir-autoscaler'))\n"
    )
    shown = subprocess.run([sys.executable, "-S", "-c", code], check=True, capture_output=True, text=True).stdout
    assert shown.strip() == str(sorted(registry.built_in()))
