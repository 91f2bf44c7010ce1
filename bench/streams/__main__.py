"""`make bench-streams`: Kafka Streams under the loop, results in bench/results/streams.json.

Parts: `groups` reads 200 groups of 100 partitions each; `steps` and `steps-agentless` answer load steps of ×3 with the
metrics endpoint and by the brokers alone; `scale-in` measures how long a task stands still; `contest` replays ten
minutes next to KEDA's rule, an autoscaler by lag and a static size. `--only` measures some and keeps the others' figures.
"""

import argparse
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from bench.results_file import earlier, log, machine, write

from . import contest, groups, scale_in, steps

PART_SECONDS = 600.0
"""Of the repetitions of one part; its start and end come on top."""


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m bench.streams", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=20, help="load steps of each kind")
    parser.add_argument("--scale-ins", type=int, default=20, help="scale-ins with eviction")
    parser.add_argument("--waits", type=int, default=3, help="scale-ins without eviction, a minute each")
    parser.add_argument("--seconds", type=float, default=600.0, help="length of the contest")
    parser.add_argument("--part-seconds", type=float, default=PART_SECONDS, help="of a part's repetitions")
    parts: dict[str, Callable[[argparse.Namespace], dict[str, Any]]] = {
        "groups": lambda _: groups.measure(),
        "steps": lambda given: steps.measure("endpoint", given.steps, given.part_seconds),
        "steps-agentless": lambda given: steps.measure("agentless", given.steps, given.part_seconds),
        "scale-in": lambda given: scale_in.measure(given.scale_ins, given.waits, given.part_seconds),
        "contest": lambda given: contest.measure(given.seconds),
    }
    parser.add_argument(
        "--only", nargs="+", choices=parts, help="measure these parts, keep the others' earlier figures"
    )
    arguments = parser.parse_args()
    results = earlier("streams")
    for name, measure in parts.items():
        if arguments.only is None or name in arguments.only:
            began = datetime.now(UTC).isoformat(timespec="seconds")
            results[name] = {"began_at": began, "load_average": machine()["load_average"], **measure(arguments)}
            log(f"written: {write('streams', 'make bench-streams', results)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
