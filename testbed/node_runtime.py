"""containerd for the testbed's Kubernetes node: own data, socket and configuration; images come from archives, not a
registry."""

import hashlib
import io
import json
import subprocess
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from .node_host import (
    CNI_FOLDER,
    NODE_ADDRESS,
    PATH,
    POD_BRIDGE,
    POD_NETWORK,
    SERVICE_NETWORK,
    network_namespaces,
    remove_namespaces,
    run,
)
from .process import ManagedProcess, Server, TestbedError

PAUSE = "weir-node/pause:1"
_NAMESPACE = "k8s.io"
_USER = "65532:65532"
_IMPORT_SECONDS = 900
_CNI_RESULTS = Path("/var/lib/cni/results")
_CONFIGURATION = """\
version = 2
root = "{data}/root"
state = "{folder}/state"
oom_score = 0
disabled_plugins = ["io.containerd.internal.v1.opt"]

[grpc]
  address = "{socket}"

[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "docker.io/{pause}"
  # A process without CAP_SYS_RESOURCE may not lower scores, and a container started by it fails at that.
  restrict_oom_score_adj = true
  stream_server_address = "127.0.0.1"
  stream_server_port = "0"
  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
      SystemdCgroup = false
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "{binaries}"
    conf_dir = "{folder}/cni"
"""


class Containerd(Server):
    """One containerd. `data` holds images and is kept from one start to the next; `folder` holds what belongs to one
    run."""

    def __init__(self, data: Path, folder: Path) -> None:
        self.data = data
        self.folder = folder
        self.socket = folder / "containerd.sock"
        command = ["containerd", "--config", str(folder / "containerd.toml")]
        self.process = ManagedProcess("containerd", command, folder, environment={"PATH": PATH}, grace_seconds=20)

    def start(self, timeout_seconds: float = 60.0) -> Self:
        """Start it and end containers that a crashed run has left."""
        (self.folder / "cni").mkdir(parents=True, exist_ok=True)
        configuration = _CONFIGURATION.format(
            data=self.data, folder=self.folder, socket=self.socket, pause=PAUSE, binaries=CNI_FOLDER
        )
        (self.folder / "containerd.toml").write_text(configuration)
        (self.folder / "cni" / "weir.conflist").write_text(json.dumps(_pod_network(self.folder / "addresses")))
        self.process.start_ready(self._answers, timeout_seconds=timeout_seconds)
        self.clear()
        return self

    def clear(self) -> None:
        """Kill and remove all containers, with the network namespaces and addresses of their pods."""
        for name in self.containers():
            namespaces = network_namespaces(self._ctr("containers", "info", name))
            subprocess.run([*self._command, "tasks", "rm", "-f", name], capture_output=True, timeout=60, check=False)
            self._ctr("containers", "rm", name)
            remove_namespaces(namespaces)
            for path in _CNI_RESULTS.glob(f"*{name}*"):
                path.unlink()

    def containers(self, namespace: str = "") -> list[str]:
        """Return the ids of the containers of a namespace's pods, or of all; their sandboxes included."""
        chosen = [f'labels."io.kubernetes.pod.namespace"=={namespace}'] if namespace else []
        return self._ctr("containers", "list", "-q", *chosen).split()

    def images(self) -> list[str]:
        return self._ctr("images", "list", "-q").split()

    def load(self, archive: Path) -> None:
        """Import the images of a docker-archive."""
        self._ctr("images", "import", str(archive), timeout_seconds=_IMPORT_SECONDS)

    def load_from_docker(self, images: Mapping[str, str]) -> None:
        """Import images of the Docker daemon, each under the name that pods use: `{"redis:7":
        "weir-test/redis:local"}`.

        Images that have not changed since the last import are left as they are.
        """
        ids = run("docker", "image", "inspect", "-f", "{{.Id}}", *images.values()).split()
        wanted = dict(zip(images, ids, strict=True))
        stamp = self.data / "imported.json"
        before = json.loads(stamp.read_text()) if stamp.exists() else {}
        there = set(self.images())
        new = [name for name in images if before.get(name) != wanted[name] or full_name(name) not in there]
        if not new:
            return
        self._stream(sorted({images[name] for name in new}))
        for name in new:
            if full_name(name) != full_name(images[name]):
                self._ctr("images", "tag", "--force", full_name(images[name]), full_name(name))
        stamp.write_text(json.dumps({**before, **wanted}))

    def _stream(self, images: Sequence[str]) -> None:
        # Layers that images share are written once.
        with subprocess.Popen(["docker", "save", *images], stdout=subprocess.PIPE) as save:
            try:
                done = subprocess.run(
                    [*self._command, "images", "import", "-"],
                    stdin=save.stdout,
                    capture_output=True,
                    timeout=_IMPORT_SECONDS,
                    check=False,
                )
            except BaseException:
                save.kill()
                raise
        if done.returncode or save.returncode:
            raise TestbedError(f"images cannot be imported: {done.stderr.decode(errors='replace').strip()[-600:]}")

    @property
    def _command(self) -> list[str]:
        return ["ctr", "--address", str(self.socket), "--namespace", _NAMESPACE]

    def _ctr(self, *arguments: str, timeout_seconds: float = 60) -> str:
        return run(*self._command, *arguments, timeout_seconds=timeout_seconds)

    def _answers(self) -> bool:
        try:
            return bool(self._ctr("version", timeout_seconds=5))
        except TestbedError:
            return False


def _pod_network(addresses: Path) -> dict[str, Any]:
    ranges = [[{"subnet": POD_NETWORK}]]
    routes = [{"dst": f"{NODE_ADDRESS}/32"}, {"dst": SERVICE_NETWORK}]
    bridge = {
        "type": "bridge",
        "bridge": POD_BRIDGE,
        "isGateway": True,
        "hairpinMode": True,
        "ipam": {"type": "host-local", "dataDir": str(addresses), "ranges": ranges, "routes": routes},
    }
    return {"cniVersion": "0.4.0", "name": "weir-pods", "plugins": [bridge]}


def full_name(image: str) -> str:
    """Return an image's name as containerd lists it: with registry and tag."""
    first, _, rest = image.partition("/")
    if not rest:
        image = f"docker.io/library/{image}"
    elif "." not in first and ":" not in first and first != "localhost":
        image = f"docker.io/{image}"
    return image if ":" in image.rpartition("/")[2] or "@" in image else f"{image}:latest"


def static_image(archive: Path, name: str, binary: Path) -> Path:
    """Write an image of one static binary as a docker-archive; it runs as no user that the machine has."""
    layer = io.BytesIO()
    with tarfile.open(fileobj=layer, mode="w") as tar:
        member = tar.gettarinfo(str(binary.resolve()), arcname=binary.name)
        member.mode, member.uid, member.gid, member.uname, member.gname = 0o755, 0, 0, "", ""
        with binary.open("rb") as content:
            tar.addfile(member, content)
    body = layer.getvalue()
    config = {
        "architecture": "amd64",
        "os": "linux",
        "config": {"Entrypoint": [f"/{binary.name}"], "User": _USER},
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{hashlib.sha256(body).hexdigest()}"]},
    }
    manifest = [{"Config": "config.json", "RepoTags": [full_name(name)], "Layers": ["layer.tar"]}]
    files = {
        "config.json": json.dumps(config).encode(),
        "layer.tar": body,
        "manifest.json": json.dumps(manifest).encode(),
    }
    archive.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(archive, "w") as tar:
        for path, content_bytes in files.items():
            member = tarfile.TarInfo(path)
            member.size = len(content_bytes)
            tar.addfile(member, io.BytesIO(content_bytes))
    return archive
