"""`make bench-kubernetes`: each part into its section of bench/results/kubernetes.json, the others stay as they are.

`actions`: from a plan to its outcome. `autoscalers`: Weir and the HPA on the same load (half an hour). `watched`: 200 workloads at
rest. `ARGS="actions watched"` runs these alone.
"""

import argparse
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from bench.results_file import earlier, log, write

from . import actions, autoscalers, watched

NAME = "kubernetes"
PARTS: dict[str, Callable[[], dict[str, Any]]] = {
    "actions": actions.measure,
    "watched": watched.measure,
    "autoscalers": autoscalers.measure,
}


def main() -> int:
    """Run the parts that are named, all without any."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", choices=[*PARTS, []], help="which to run (default: all)")
    for name in parser.parse_args().parts or PARTS:
        log(f"{name}: begins")
        found = {**PARTS[name](), "measured_at": datetime.now(UTC).isoformat(timespec="seconds")}
        log(f"{write(NAME, 'make bench-kubernetes', {**earlier(NAME), name: found})}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
