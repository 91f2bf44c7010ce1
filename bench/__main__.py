"""`python -m bench NAME [options]`, which `make bench-NAME ARGS="options"` calls: measure, and keep the results in
bench/results. Without a name it lists the benchmarks; `--help` after a name lists its options."""

import importlib
import sys
from collections.abc import Mapping

MODULES: Mapping[str, tuple[str, str]] = {
    "loop": ("bench.loop", "the loop around a real job on this machine (about 45 minutes)"),
    "single": ("bench.single", "one process: starts, memory, how many applications it carries (about 45 minutes)"),
    "page": ("bench.page", "the page in a browser: first view, ten open pages, a day's timeline (about 10 minutes)"),
    "fleet": ("bench.fleet", "how many applications one loop carries (about 12 minutes)"),
    "compare": (
        "bench.compare",
        "Weir next to static parallelism, a reactive rule and other planners on a real job (about 42 minutes)",
    ),
    "flink-shapes": ("bench.flink_shapes", "one Flink job in the shapes that Weir scales (about 55 minutes)"),
    "chaos": ("bench.chaos.__main__", "faults at fail points of actions, judged from outside (an hour)"),
    "quality": ("bench.scenarios quality", "Weir and a reactive rule on the simulator (about 15 minutes)"),
    "planners": (
        "bench.scenarios planners",
        "every built-in planner on the simulator (about 25 minutes of one core)",
    ),
    "ahead": (
        "bench.scenarios ahead",
        "a week of each recording with slow capacity, with and without the forecast (about 50 minutes of one core)",
    ),
    "forecast": ("bench.forecast", "the analyzer's forecast on entire recordings (about 5 minutes of one core)"),
    "capacity": ("bench.capacity", "the predictor's capacity curves against published ones (some seconds)"),
    "advance": ("bench.cost", "the analyzer's core (some seconds)"),
    "decisions": ("bench.decisions", "no times: records decisions, or compares them with a record"),
}
"""Module (with leading arguments) and subject of each benchmark. The module's `main()` runs the benchmark."""


def main() -> int:
    """Run the benchmark that is named; returns its exit code."""
    name, options = next(iter(sys.argv[1:]), "--help"), sys.argv[2:]
    if name not in MODULES:
        listed = "\n".join(f"  {each:12} {subject}" for each, (_, subject) in MODULES.items())
        print(f"python -m bench NAME [options]; NAME is one of\n{listed}")
        return 0 if name in ("-h", "--help") else 2
    module, *own = MODULES[name][0].split()
    sys.argv = [f"python -m bench {name}", *own, *options]
    code: int = importlib.import_module(module).main()
    return code


if __name__ == "__main__":
    sys.exit(main())
