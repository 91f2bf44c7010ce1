"""`python -m tests.golden.messages.record`: record what the services publish, for the test of an upgrade.

The loop runs with a simulated job whose load rises, and is cut when the executor has announced a rescale and not yet
requested it. Kept are the policy and the last cycles.
"""

import json
from pathlib import Path
from uuid import NAMESPACE_OID

from tests.loop.world import World, job
from weir_contracts.topics import POLICIES
from weir_runtime.bus import Outgoing
from weir_runtime.messages import encode

RECORDING = Path(__file__).resolve().parent / "in_flight.jsonl"
COMMAND = "python -m tests.golden.messages.record"
LOAD, MORE = 400.0, 1400.0
"""Records/s."""
CALM_SECONDS, MAX_SECONDS = 60.0, 120.0
KEPT = 8
"""Two cycles of observation, analysis and plan, and the two outcomes."""


def record() -> list[Outgoing]:
    """Return what was published, in its order."""
    published: list[Outgoing] = []
    world = World(job(1), LOAD, interval="10s")
    world.loop.bus._published = published.append  # in place of `replay.loop.Tally`
    world.live(CALM_SECONDS)
    world.load = MORE
    world.live(MAX_SECONDS)
    world.loop.close()
    cut = next(i for i, each in enumerate(published) if each.value is not None and b'"phase":"applying"' in each.value)
    policy = world.policy
    body, headers = encode(
        policy, type=POLICIES.type, source="knowledge", id=NAMESPACE_OID, time=world.loop.clock.now()
    )
    return [Outgoing(POLICIES.name, policy.application, body, headers), *published[cut + 1 - KEPT : cut + 1]]


def main() -> None:
    lines = [
        {"topic": each.topic, "key": each.key, "headers": each.headers, "value": json.loads(each.value or b"null")}
        for each in record()
    ]
    RECORDING.write_text("".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines))
    print(f"{RECORDING}: {len(lines)} messages")  # noqa: T201 - a script


if __name__ == "__main__":
    main()
