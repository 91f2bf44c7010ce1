"""Builds the programs of a Kubernetes cluster with Go: `python -m testbed.kubernetes_programs [node]`.

That takes about ten minutes on two cores and happens once. `node`: with what runs pods on this machine instead of what
simulates them, five minutes more.
"""

import os
import re
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

from .bootstrap import CACHE, PROJECT, SetupError, Step, inspect_machine, missing_space, output_of, perform, report
from .node_host import missing as missing_for_node

VERSION = "1.34.2"
PARTS = ("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubectl")
"""Built from one Go module, testbed/kubernetes-tools; the API server first, since it compiles what they share."""
_GO_PACKAGES = {
    "kwok": "sigs.k8s.io/kwok/cmd/kwok@v0.7.0",
    "metrics-server": "sigs.k8s.io/metrics-server/cmd/metrics-server@v0.8.0",
    "coredns": "github.com/coredns/coredns@v1.12.4",
}
SIMULATION = (*PARTS, "kwok", "metrics-server")
"""Programs of a cluster whose pods are simulated; etcd is installed."""
NODE = (*PARTS, "metrics-server", "kubelet", "kube-proxy", "coredns", "pause")
"""Programs of a cluster whose pods run on this machine."""
FOLDER = CACHE / "kubernetes" / VERSION
MIN_GO = (1, 24)
DISK_MEGABYTES = 6500
"""Disk space of building the Kubernetes API server: 6 GB of Go's modules and build cache, 0.5 GB of programs."""


def missing_etcd() -> str | None:
    """Return a sentence if the Kubernetes API server would have no etcd, else None."""
    if program("etcd") or shutil.which("etcd"):
        return None
    return "etcd is needed by the Kubernetes API server: install it (Debian: apt install etcd-server)"


def missing() -> str | None:
    """Return what building and running the Kubernetes API server lacks; None if nothing."""
    if missing_etcd():
        return missing_etcd()
    go = shutil.which("go")
    if go is None:
        return (
            "the Kubernetes API server is built with Go and no go is on the PATH: install Go 1.24 or later, "
            "or set KUBEBUILDER_ASSETS to a folder with its binaries"
        )
    found = re.search(r"go(\d+)\.(\d+)", output_of([go, "env", "GOVERSION"]) or "")
    if found and (int(found.group(1)), int(found.group(2))) < MIN_GO:
        return f"Go 1.24 or later is needed to build the Kubernetes API server, this is Go {found.group(0)[2:]}"
    return None


def program(name: str) -> Path | None:
    """Return a built program of Kubernetes, or the one in KUBEBUILDER_ASSETS (envtest's convention); None if neither
    exists."""
    assets = os.environ.get("KUBEBUILDER_ASSETS")
    folders = ([Path(assets)] if assets else []) + [FOLDER]
    return next((folder / name for folder in folders if (folder / name).exists()), None)


def absent(names: Sequence[str]) -> list[str]:
    """Return the programs that are neither built nor in KUBEBUILDER_ASSETS."""
    return [name for name in names if program(name) is None]


def steps(*, with_node: bool = False) -> Iterator[tuple[Step, Callable[[Step], None]]]:
    """Yield one step for each program that KUBEBUILDER_ASSETS does not hold, with the function that builds it.

    With a node: the programs of a machine where pods really run, instead of what simulates them.
    """
    module, pause = PROJECT / "testbed" / "kubernetes-tools", PROJECT / "testbed" / "pause"
    for name in NODE if with_node else SIMULATION:
        result = FOLDER / name
        if program(name) not in {None, result}:
            continue
        if name == "pause":
            yield Step("kubernetes-pause", [pause], result), partial(_build_pause, pause)
        else:
            step = Step(f"kubernetes-{name}", [module], result, version=_GO_PACKAGES.get(name, ""))
            yield step, partial(_build_program, module, name)


def _build_pause(folder: Path, step: Step) -> None:
    step.result.parent.mkdir(parents=True, exist_ok=True)
    build = ["go", "build", "-trimpath", "-ldflags", "-s -w", "-o", str(step.result), str(folder / "main.go")]
    step.run(build, {"CGO_ENABLED": "0"})


def _build_program(module: Path, name: str, step: Step) -> None:
    step.result.parent.mkdir(parents=True, exist_ok=True)
    environment = {"CGO_ENABLED": "0", "GOBIN": str(step.result.parent), "GOFLAGS": "-mod=readonly"}
    if name in _GO_PACKAGES:
        # The checksum database has no entry for metrics-server.
        environment = {**environment, "GOFLAGS": "", "GONOSUMDB": "sigs.k8s.io/metrics-server"}
        step.run(["nice", "go", "install", "-trimpath", "-ldflags", "-s -w", _GO_PACKAGES[name]], environment)
        return
    version = "k8s.io/component-base/version"
    major, minor, _ = VERSION.split(".")
    flags = f"-s -w -X {version}.gitVersion=v{VERSION} -X {version}.gitMajor={major} -X {version}.gitMinor={minor}"
    package = f"k8s.io/kubernetes/cmd/{name}"
    build = ["go", "build", "-C", str(module), "-trimpath", "-ldflags", flags, "-o", str(step.result), package]
    step.run(["nice", *build], environment)


def set_up(*, with_node: bool = False) -> None:
    """Build the missing programs of a Kubernetes cluster, or also of a node; raises `SetupError` with one line for the
    user."""
    if all(step.done for step, _ in steps(with_node=with_node)):
        return
    found = inspect_machine(with_java=False)
    # Before the builds, which take long: what else the machine lacks.
    problem = (missing_for_node() if with_node else None) or missing() or missing_space(found, DISK_MEGABYTES)
    if problem:
        raise SetupError(problem)
    perform(partial(steps, with_node=with_node))


def main(arguments: list[str]) -> int:
    """Build; returns 0 when all is in place, 1 and one line if something is missing or failed, 2 for wrong arguments."""
    if arguments not in ([], ["node"]):
        sys.stderr.write("usage: python -m testbed.kubernetes_programs [node]\n")
        return 2
    return report(partial(set_up, with_node=bool(arguments)))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
