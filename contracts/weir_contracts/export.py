"""Writes the JSON Schemas of all contracts beside the package, or checks that they still fit.

`python -m weir_contracts.export [--check] [FOLDER]`
"""

import json
import sys
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from .analysis import Analysis
from .base import VERSION
from .dead_letter import DeadLetter
from .observation import Observation
from .outcome import ActionState, Outcome
from .planning import Plan, PlanReply, PlanRequest
from .plugin_api import plugin_openapi
from .plugins import PlannerDescription, PlannerRegistration
from .policy import ScalingPolicy
from .shadows import Scores, Shadows
from .what_if import WhatIf

CONTRACTS: dict[str, type[BaseModel]] = {
    "policy": ScalingPolicy,
    "observation": Observation,
    "analysis": Analysis,
    "plan-request": PlanRequest,
    "plan-reply": PlanReply,
    "plan": Plan,
    "outcome": Outcome,
    "action-state": ActionState,
    "dead-letter": DeadLetter,
    "what-if": WhatIf,
    "planner-description": PlannerDescription,
    "planner-registration": PlannerRegistration,
    "shadows": Shadows,
    "scores": Scores,
}
"""Every contract by the name its schema and examples go by."""

FOLDER = Path(__file__).resolve().parent.parent / "schemas"


def schema_text(model: type[BaseModel], name: str) -> str:
    """The contract's JSON Schema (draft 2020-12) as the file holds it."""
    schema: dict[str, Any] = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": f"https://weir.dev/schemas/{VERSION}/{name}.schema.json",
        **model.model_json_schema(by_alias=True),
    }
    return json.dumps(schema, indent=2, sort_keys=True) + "\n"


def documents() -> dict[str, str]:
    """Every exported file's text by its name: a schema for each contract, and what a planner elsewhere implements as OpenAPI."""
    schemas = {f"{name}.schema.json": schema_text(model, name) for name, model in CONTRACTS.items()}
    return schemas | {"planner.openapi.json": json.dumps(plugin_openapi(), indent=2, sort_keys=True) + "\n"}


def drift(folder: Path = FOLDER) -> list[str]:
    """One sentence for each exported schema that is missing or no longer what the types say."""
    found = []
    for name, text in documents().items():
        path = folder / VERSION / name
        if not path.exists():
            found.append(f"{path.name} is missing: run `make schemas`")
        elif path.read_text() != text:
            found.append(f"{path.name} is not what the types say: run `make schemas` and read the difference")
    return found


def export(folder: Path = FOLDER) -> list[Path]:
    """Write all schemas below `folder`/VERSION; returns their paths."""
    target = folder / VERSION
    target.mkdir(parents=True, exist_ok=True)
    written = []
    for name, text in documents().items():
        path = target / name
        path.write_text(text)
        written.append(path)
    return written


def main(arguments: list[str]) -> int:
    """0: written, or no drift; 1: drift (with `--check`)."""
    folders = [Path(a) for a in arguments if not a.startswith("-")]
    folder = folders[0] if folders else FOLDER
    lines = drift(folder) if "--check" in arguments else [str(path) for path in export(folder)]
    sys.stdout.writelines(line + "\n" for line in lines)
    return 1 if "--check" in arguments and lines else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
