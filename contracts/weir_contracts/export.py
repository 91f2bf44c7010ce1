"""Write the JSON Schemas of all contracts and the policy's reference page, or check that they match the types.

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
from .plugin_api import JsonSchema, plugin_openapi
from .plugins import PlannerDescription, PlannerRegistration
from .policy import ScalingPolicy
from .policy_page import policy_page
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
"""Contracts by the name of their schema and examples."""

ROOT = Path(__file__).resolve().parents[2]
SCHEMAS = f"contracts/schemas/{VERSION}"


def schema_of(model: type[BaseModel]) -> dict[str, Any]:
    """Return the contract's JSON Schema, with fields in the order of the type."""
    return model.model_json_schema(by_alias=True, schema_generator=JsonSchema)


def schema_text(model: type[BaseModel], name: str) -> str:
    """Return the content of the contract's schema file (JSON Schema draft 2020-12)."""
    schema: dict[str, Any] = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": f"https://weir.dev/schemas/{VERSION}/{name}.schema.json",
        **schema_of(model),
    }
    return json.dumps(schema, indent=2, sort_keys=True) + "\n"


def documents() -> dict[str, str]:
    """Return the contents of all exported files by path from the project's root: schemas, OpenAPI, policy reference."""
    schemas = {f"{SCHEMAS}/{name}.schema.json": schema_text(model, name) for name, model in CONTRACTS.items()}
    return schemas | {
        f"{SCHEMAS}/planner.openapi.json": json.dumps(plugin_openapi(), indent=2, sort_keys=True) + "\n",
        "docs/reference/policy.md": policy_page(schema_of(ScalingPolicy)),
    }


def drift(folder: Path = ROOT) -> list[str]:
    """Return one sentence for each exported file that is missing or differs from the types."""
    found = []
    for name, text in documents().items():
        path = folder / name
        if not path.exists():
            found.append(f"{path.name} is missing: run `make schemas`")
        elif path.read_text() != text:
            found.append(f"{path.name} differs from the types: run `make schemas` and read the difference")
    return found


def export(folder: Path = ROOT) -> list[Path]:
    """Write all exported files below `folder`; return their paths."""
    written = []
    for name, text in documents().items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        written.append(path)
    return written


def main(arguments: list[str]) -> int:
    """Return 0 if written or without drift, 1 with drift (`--check`)."""
    folders = [Path(a) for a in arguments if not a.startswith("-")]
    folder = folders[0] if folders else ROOT
    lines = drift(folder) if "--check" in arguments else [str(path) for path in export(folder)]
    sys.stdout.writelines(line + "\n" for line in lines)
    return 1 if "--check" in arguments and lines else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
