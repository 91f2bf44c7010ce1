"""Packages of planners as pip leaves them in a folder."""

import importlib
from pathlib import Path

GOOD = """
from pydantic import BaseModel, Field
from weir_sdk import planner

class Wanted(BaseModel):
    parallelism: int = Field(default=2, ge=1)

@planner(name="steady-hand", parameters=Wanted, reads=[])
def plan(request):
    "keeps one parallelism"
    wanted = request.parameters(Wanted).parallelism
    return request.scale({name: wanted for name in request.operators}, "fixed", "the policy fixes it")
"""


def install(site: Path, package: str, source: str | None, **points: str) -> None:
    """A package as pip leaves it: modules, and a folder of metadata."""
    made = site / f"{package}-1.0.dist-info"
    made.mkdir()
    (made / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
    lines = [f"{name.replace('_', '-')} = {target}" for name, target in points.items()]
    (made / "entry_points.txt").write_text("\n".join(["[weir.planners]", *lines, ""]))
    if source is not None:
        (site / f"{package}.py").write_text(source)
    importlib.invalidate_caches()
