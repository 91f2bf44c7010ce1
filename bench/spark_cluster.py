"""`make bench-spark`: the analyzer on one and on two workers of a Spark cluster; results in bench/results/spark_cluster.json.

The same backlog as in `make bench-backlog`, worked off by a real standalone cluster on this machine, each worker with one core. Driver,
brokers, master and workers share the machine's cores, so that on two of them the second worker finds them taken: what each observation
costs in processor time, and where, is what carries over to other machines.
"""

import argparse
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import psutil

from bench.advance import OPERATORS
from bench.backlog import measured
from bench.results_file import write
from testbed.process import Usage
from testbed.spark import SparkCluster


def _used(cluster: SparkCluster) -> float:
    """Processor time of all workers and what they started and still runs, in s."""
    usages: list[Usage | None] = [worker.process.usage() for worker in cluster.workers]
    return sum(usage.cpu_seconds for usage in usages if usage is not None)


def on_workers(workers: int, applications: int, each: int) -> dict[str, Any]:
    """One backlog on so many workers."""
    with (
        tempfile.TemporaryDirectory(prefix="weir-spark-") as temporary,
        SparkCluster(Path(temporary), workers=workers, cores=1) as cluster,
    ):
        settings = {
            "WEIR_ANALYZER_SPARK_MASTER": cluster.url,
            "WEIR_ANALYZER_EXECUTOR_MEMORY_MEGABYTES": "768",
            **cluster.environment,
        }
        figures = measured(f"{workers}-workers", settings, applications, each, lambda: _used(cluster))
    return {"workers": workers, **{name: value for name, value in figures.items() if name not in ("name", "settings")}}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--applications", type=int, default=200, help="size of the fleet (default 200)")
    parser.add_argument("--each", type=int, default=60, help="observations of each (default 60: ten minutes)")
    parser.add_argument("--workers", type=int, nargs="*", default=[1, 2], help="how many workers (default 1 2)")
    arguments = parser.parse_args()
    runs = []
    for workers in arguments.workers:
        runs.append(on_workers(workers, arguments.applications, arguments.each))
        print(json.dumps(runs[-1]), flush=True)
    rates = {run["workers"]: run["observations_per_second"] for run in runs}
    speedup = round(rates[2] / rates[1], 2) if rates.get(1) and rates.get(2) else None
    results = {
        "operators_each": OPERATORS,
        "cores_each_worker": 1,
        "cores_of_the_machine": psutil.cpu_count(),
        "two_workers_against_one": speedup,
        "runs": runs,
    }
    print(write("spark_cluster", "make bench-spark", results))
    return 0


if __name__ == "__main__":
    sys.exit(main())
