"""`make demo-kubernetes`: a Kubernetes node on this machine with the complete loop in it, until Ctrl-C.

Without a cluster of your own. On one that you have, `kubectl apply -k deploy/k8s/overlays/demo` is all. The argument
`reactive` takes that overlay: Weir starts and stops TaskManager pods; `kafka-streams` does so with instances of a Kafka
Streams application.
"""

import argparse
import signal
import sys
import threading

from testbed.kubernetes import binary
from testbed.node import KubernetesNode
from testbed.process import TestbedError

from .images import missing
from .stack import WEIR, NodeStack

_LOOK = """
The loop runs. In another terminal, as root:

  export KUBECONFIG={kubeconfig}
  export WEIR_SERVER={server}
  export WEIR_TOKEN=$({kubectl} -n {namespace} get secret tokens -o jsonpath='{{.data.operator}}' | base64 -d)
  .venv/bin/weir watch demo/orders          # then: weir explain demo/orders
  {kubectl} get pods -A                     # or top pods -A
  {kubectl} -n demo get scalingpolicies     # or describe, edit
  {kubectl} -n demo exec deployment/load -- python -m workloads.loadgen.set_load rate=2400    # rate=null: the sine again

Ctrl-C ends it and removes everything but the images.
"""


def _report(line: str) -> None:
    sys.stdout.write(f"demo: {line}\n")
    sys.stdout.flush()


def _run(overlay: str) -> None:
    """Start node and overlay, say what to look at, and wait; `TestbedError` if a part does not start or ends."""
    if reason := missing():
        raise TestbedError(reason)
    _report("starting a node")
    with KubernetesNode() as node:
        stack = NodeStack(node, overlay)
        _report(f"installed and ready after {stack.up(_report):.0f} s")
        server = f"http://{node.service_address(WEIR, 'knowledge')}:8080"
        values = {"kubeconfig": node.cluster.admin.kubeconfig, "kubectl": binary("kubectl"), "server": server}
        sys.stdout.write(_LOOK.format(namespace=WEIR, **values))
        sys.stdout.flush()
        try:
            while not threading.Event().wait(1.0):
                node.check()
        finally:
            _report("removing it")


def _interrupt(*_: object) -> None:
    # Once: what removes the node again is not to be interrupted.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)
    raise KeyboardInterrupt


def main() -> int:
    """Run until SIGTERM or SIGINT; 1 and the reason if it does not start."""
    parser = argparse.ArgumentParser(prog="make demo-kubernetes", description="The loop on a node of this machine.")
    parser.add_argument("overlay", nargs="?", choices=("demo", "reactive", "kafka-streams"), default="demo")
    overlay = parser.parse_args().overlay
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _interrupt)
    try:
        _run(overlay)
    except KeyboardInterrupt:
        return 130
    except TestbedError as error:
        sys.stderr.write(f"demo: {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
