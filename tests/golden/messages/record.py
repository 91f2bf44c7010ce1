"""`python tests/golden/messages/record.py`: record the messages of this version, for the test of an upgrade from it.

The loop runs with a simulated job whose load rises, and is cut when an executor has announced a rescale and not yet
requested it. Run it in a checkout of the version that is upgraded from, and commit the file with the change of the
contracts that follows it.
"""

import json
import subprocess
from pathlib import Path
from uuid import NAMESPACE_OID

from weir_contracts.topics import POLICIES

from runtime.envelope import encode
from runtime.records import Outgoing
from tests.loop.world import World, job

HERE = Path(__file__).resolve().parent
LOAD, MORE = 400.0, 1400.0
CALM_SECONDS, MAX_SECONDS = 60.0, 120.0


def record() -> list[Outgoing]:
    """Return what was published, in its order."""
    published: list[Outgoing] = []
    world = World(job(1), LOAD, interval="10s")
    world.loop.bus._published = published.append  # the records that `replay.loop.Tally` counts
    world.live(CALM_SECONDS)
    world.load = MORE
    world.live(MAX_SECONDS)
    world.loop.close()
    policy, written = world.policy, NAMESPACE_OID
    body, headers = encode(policy, type=POLICIES.type, source="knowledge", id=written, time=world.loop.now)
    published.insert(0, Outgoing(POLICIES.name, policy.application, body, headers))
    cut = next(i for i, each in enumerate(published) if each.value is not None and b'"phase":"applying"' in each.value)
    return published[: cut + 1]


def main() -> None:
    revision = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=True)
    lines = [
        {"topic": each.topic, "key": each.key, "headers": each.headers, "value": json.loads(each.value or b"null")}
        for each in record()
    ]
    path = HERE / f"{revision.stdout.strip()}.jsonl"
    path.write_text("".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines))
    print(f"{path}: {len(lines)} messages")  # noqa: T201 - a script


if __name__ == "__main__":
    main()
