"""`make chaos`: faults at fail points of actions, judged from outside; results in bench/results/chaos.json.

Each round changes the load, waits until a request or its response is held at a fail point by the recording proxy in
front of the target, strikes one or two parts, lets the request go on, mends the parts as a supervisor would, and waits
until the application runs what its load needs. The judge knows what arrived at the target, not what Weir says.

`--target simulated`: two executors and knowledge, plans from a script, and a simulated Flink. `--target endpoint`: the
same with scale endpoints, whose instances are members of consumer groups of the real broker. `--target managers`: a
simulated Flink whose TaskManagers run behind scale endpoints. `--target resubmit`: a simulated Flink whose jobs are
stopped with a savepoint and run again. `--target flink`: all services around the sample job; a job whose JobManager
died is submitted again from its last checkpoint, as the cluster has no high availability. `--target kubernetes`: a
Deployment of a real API server, whose pods are simulated.
"""

import argparse
import shutil
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

from bench.results_file import earlier, log, write

from .campaign import Campaign, run
from .endpoint import Endpoints
from .faults import draw
from .flink import FlinkCampaign, FlinkStack
from .kubernetes import KubernetesCampaign, KubernetesStack
from .managers import ManagedJobs
from .proxy import RecordingProxy
from .resubmit import ResubmittedTarget
from .simulated import FlinkJobs, SimulatedCampaign, SimulatedStack, Target

TARGETS: Mapping[str, Callable[[], Target]] = {
    "simulated": FlinkJobs,
    "endpoint": Endpoints,
    "managers": ManagedJobs,
    "resubmit": ResubmittedTarget,
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--target", choices=("flink", "kubernetes", *TARGETS), default="simulated", help="what is scaled"
    )
    parser.add_argument("--rounds", type=int, default=200, help="how many (default 200: about an hour)")
    parser.add_argument(
        "--seed", type=int, default=1, help="of the order and the timing of the faults; results of other seeds are kept"
    )
    parser.add_argument("--minutes", type=float, default=120.0, help="no round begins after this long")
    arguments = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="weir-chaos-"))
    log(f"seed {arguments.seed}; every log is in {folder}")
    campaign: Campaign

    def pids() -> Mapping[str, int]:
        return campaign.pids()

    with RecordingProxy(pids) as proxy:
        match arguments.target:
            case "flink":
                campaign = FlinkCampaign(FlinkStack(folder, proxy), proxy, arguments.seed)
            case "kubernetes":
                campaign = KubernetesCampaign(KubernetesStack(folder, proxy), proxy, arguments.seed)
            case name:
                stack = SimulatedStack(folder, proxy, arguments.seed, TARGETS[name]())
                campaign = SimulatedCampaign(stack, proxy, arguments.seed)
        plans = draw(arguments.rounds, arguments.seed, campaign.faults, campaign.points)
        results = run(campaign, plans, arguments.seed, arguments.minutes)
    if results["passed"]:
        shutil.rmtree(folder)
    command = f'make chaos ARGS="--target {arguments.target} --rounds {arguments.rounds} --seed {arguments.seed}"'
    kept = {**earlier("chaos"), f"{arguments.target}, seed {arguments.seed}": {"command": command, **results}}
    log(f"written: {write('chaos', 'make chaos', kept)}")
    return 0 if results["passed"] else 1


if __name__ == "__main__":
    sys.exit(main())
