"""The runbook names every dependency that a service may wait for."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[3]
REGISTERED = re.compile(r"""\.register\(\s*"([a-z-]+)\"""")


def test_every_dependency_has_its_line() -> None:
    """Under the alert that names it, with the services that register it; and none that was removed."""
    of: dict[str, set[str]] = {}
    for service in (path.parents[1] for path in (ROOT / "services").glob("*/*/__main__.py")):
        for path in service.rglob("*.py"):
            for name in REGISTERED.findall(path.read_text()):
                of.setdefault(name, set()).add(service.name)
    for path in (ROOT / "runtime" / "weir_runtime").glob("*.py"):
        of |= {name: {"all"} for name in REGISTERED.findall(path.read_text())}
    services = {path.parents[1].name for path in (ROOT / "services").glob("*/*/__main__.py")}
    expected = {name: {"all"} if whose == services else whose for name, whose in of.items()}
    assert expected.keys() >= {"kafka", "topics", "redis", "view", "spark", "knowledge"}
    text = (ROOT / "docs" / "how-to" / "runbook.md").read_text()
    section = text[text.index("### WeirDependencyAway") : text.index("### WeirLoopSilent")]
    documented = re.findall(r"^- `([a-z-]+)` \(([a-z, ]+)\): ", section, re.MULTILINE)
    assert {name: set(whose.split(", ")) for name, whose in documented} == expected
