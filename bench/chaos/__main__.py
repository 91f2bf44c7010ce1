"""`make chaos`: kills every part in every phase of an action; results in bench/results/chaos.json.

Each round changes the load, waits for a moment of the action that answers it, kills one process with SIGKILL, starts it
again as a supervisor would, and waits until the job runs at the right parallelism, fresh, with nothing in flight.
Nothing else is done by hand, except that a job whose JobManager died is submitted again from its last checkpoint: the
cluster has no high availability (it needs ZooKeeper or Kubernetes), and Weir is to find the job again by its name.

`--target kubernetes`: a Deployment of a real API server instead of the sample job, into chaos_kubernetes.json.
"""

import argparse
import json
import shutil
import sys
import tempfile
from pathlib import Path

from bench.results_file import log, write

from .campaign import VICTIMS, flink_campaign, plan_of
from .kubernetes import VICTIMS as KUBERNETES_VICTIMS
from .kubernetes import kubernetes_campaign


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--kills",
        type=int,
        default=66,
        help="how many (default 66: everything at every moment; about an hour; 0: the outages alone, into chaos_outage.json)",
    )
    parser.add_argument("--seed", type=int, default=1, help="order and timing of the kills")
    parser.add_argument(
        "--outage-seconds", type=float, default=300.0, help="how long Kafka is away at the end, twice; 0: not"
    )
    parser.add_argument("--victims", nargs="*", default=None, help="only these; the results are printed, not kept")
    parser.add_argument(
        "--target",
        choices=("flink", "kubernetes"),
        default="flink",
        help="what is scaled: the sample job, or a Deployment whose pods are simulated, into chaos_kubernetes.json",
    )
    arguments = parser.parse_args()
    known = KUBERNETES_VICTIMS if arguments.target == "kubernetes" else VICTIMS
    if unknown := sorted(set(arguments.victims or ()) - set(known)):
        parser.error(f"--victims: {', '.join(unknown)} is no part of a {arguments.target} target: {', '.join(known)}")
    kills = plan_of(arguments.kills, arguments.seed, arguments.victims or known)
    folder = Path(tempfile.mkdtemp(prefix="weir-chaos-"))
    if arguments.target == "kubernetes":
        results = kubernetes_campaign(kills, arguments.seed, folder)
    else:
        results = flink_campaign(kills, arguments.seed, arguments.outage_seconds, folder)
    if results["passed"]:
        shutil.rmtree(folder)
    else:
        log(f"every log is in {folder}")
    if arguments.victims is not None:
        print(json.dumps(results, indent=2))
    else:
        target = "" if arguments.target == "flink" else f"--target {arguments.target} "
        command = f'make chaos ARGS="{target}--kills {arguments.kills} --seed {arguments.seed}"'
        name = "chaos_kubernetes" if target else "chaos" if kills else "chaos_outage"
        log(f"written: {write(name, command, results)}")
    return 0 if results["passed"] else 1


if __name__ == "__main__":
    sys.exit(main())
