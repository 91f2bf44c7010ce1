"""`weir run --kubernetes` with a kubectl that stands in for a cluster: who may read through its proxy, how long that lives, and
what is said about a cluster that cannot be looked at."""

import asyncio
import os
import signal
import stat
import sys
from pathlib import Path

import pytest

from weir_cli import discovery_kubernetes as module
from weir_cli.client import InvalidInput, Unreachable
from weir_cli.discovery_kubernetes import Workloads

KUBECTL = """#!{python}
import os, pathlib, socketserver, sys
from http.server import BaseHTTPRequestHandler
here = pathlib.Path(__file__).parent
options = dict(each.split("=", 1) for each in sys.argv if each.startswith("--") and "=" in each)
if "proxy" not in sys.argv:
    sys.exit(0)
(here / "pid").write_text(str(os.getpid()))
if (here / "fails").exists():
    sys.exit(1)

class Answer(BaseHTTPRequestHandler):
    def do_GET(self):
        body = (here / "answer").read_bytes()
        self.send_response(int((here / "status").read_text()))
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def address_string(self):
        return "a client"

path = options.get("--unix-socket")
server = socketserver.UnixStreamServer(path, Answer) if path else socketserver.TCPServer(("127.0.0.1", 0), Answer)
print("Starting to serve on", path or "127.0.0.1:%d" % server.server_address[1], flush=True)
server.serve_forever()
"""
NONE = '{"kind": "List", "metadata": {}, "items": []}'
PATIENCE_SECONDS = 30.0


@pytest.fixture
def kubectl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the kubectl on the PATH: its files `answer` and `status` are what the cluster answers."""
    folder = tmp_path / "bin"
    folder.mkdir()
    program = folder / "kubectl"
    program.write_text(KUBECTL.format(python=sys.executable))
    program.chmod(0o755)
    answers(folder, NONE)
    monkeypatch.setenv("PATH", str(folder), prepend=":")
    return folder


def answers(folder: Path, body: str, status: int = 200) -> None:
    (folder / "answer").write_text(body)
    (folder / "status").write_text(str(status))


async def ended(folder: Path) -> None:
    """Wait for the proxy's process to end."""
    pid = int((folder / "pid").read_text())
    async with asyncio.timeout(PATIENCE_SECONDS):
        while _lives(pid):  # noqa: ASYNC110
            await asyncio.sleep(0.02)


def _exists(path: Path) -> bool:
    return path.exists()


def _mode(path: Path) -> int:
    return path.stat().st_mode


def _lives(pid: int) -> bool:
    """Return whether a process runs; one that has ended may wait for its parent."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


async def test_no_other_user_of_the_machine_reads_through_the_proxy(kubectl: Path) -> None:
    """It listens on a socket in a folder that this user alone may enter. At the end both are gone, and so is the proxy."""
    found = await Workloads.open("shop")
    socket = Path(found.url.removeprefix("unix:"))
    assert stat.S_ISSOCK(_mode(socket))
    assert stat.S_IMODE(_mode(socket.parent)) == 0o700
    assert "no Deployment or StatefulSet runs in namespace shop" in (await found.find()).sentence
    await found.close()
    await ended(kubectl)
    assert not socket.parent.exists()


async def test_the_proxy_ends_with_a_process_that_is_killed(kubectl: Path) -> None:
    """Nothing of the killed process runs any more; what it started sees that, and removes the socket."""
    script = (
        "import asyncio, os, signal\n"
        "from weir_cli.discovery_kubernetes import Workloads\n"
        "async def main():\n"
        "    found = await Workloads.open('shop')\n"
        "    print(found.url, flush=True)\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
        "asyncio.run(main())\n"
    )
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", script, stdout=asyncio.subprocess.PIPE)
    out, _ = await asyncio.wait_for(process.communicate(), 2 * PATIENCE_SECONDS)
    assert process.returncode == -signal.SIGKILL
    await ended(kubectl)
    folder = Path(out.decode().strip().removeprefix("unix:")).parent
    async with asyncio.timeout(PATIENCE_SECONDS):
        while folder.exists():  # noqa: ASYNC110
            await asyncio.sleep(0.02)


async def test_where_the_path_of_a_socket_is_too_long_the_proxy_has_a_port(
    kubectl: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The folder for temporary files may lie deep."""
    deep = tmp_path / ("x" * 120)
    deep.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(deep))
    found = await Workloads.open("shop")
    assert found.url.startswith("http://127.0.0.1:")
    assert not (await found.find()).candidates
    await found.close()
    await ended(kubectl)
    assert list(deep.iterdir()) == []


async def test_a_proxy_that_does_not_start_is_a_sentence(kubectl: Path) -> None:
    """kubectl says why in a terminal."""
    (kubectl / "fails").touch()
    with pytest.raises(
        Unreachable, match="--kubernetes: kubectl proxy did not start within 15 s: try it in a terminal"
    ):
        await Workloads.open("shop")
    await ended(kubectl)


async def test_a_proxy_that_does_not_end_is_killed(kubectl: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It ignores the request to end."""
    program = kubectl / "kubectl"
    program.write_text(
        program.read_text().replace("print(", "import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\nprint(")
    )
    monkeypatch.setattr(module, "END_SECONDS", 0.5)
    found = await Workloads.open("shop")
    await found.find()
    await found.close()
    await ended(kubectl)
    assert not _exists(Path(found.url.removeprefix("unix:")).parent)


DENIED = '{"kind": "Status", "status": "Failure", "reason": "Forbidden", "message": "no list", "code": 403}'


@pytest.mark.parametrize(
    ("status", "body", "kind", "says"),
    [
        (403, DENIED, InvalidInput, "grant list and watch on deployments, statefulsets and pods of shop"),
        (200, "<html><title>Sign in</title></html>", Unreachable, "instead of JSON"),
        (502, "<html>Bad gateway</html>", Unreachable, "is not of a Kubernetes API"),
    ],
)
async def test_a_cluster_that_cannot_be_looked_at_is_one_sentence_with_a_remedy(
    kubectl: Path, status: int, body: str, kind: type[Exception], says: str
) -> None:
    """No rights, or a proxy in front of the cluster that answers a page. The sentence names no setting that weir run ignores."""
    answers(kubectl, body, status)
    found = await Workloads.open("shop")
    with pytest.raises(kind) as refused:
        await found.find()
    await found.close()
    said = str(refused.value)
    assert said.startswith("--kubernetes: ")
    assert says in said
    assert "WEIR_KUBERNETES_URL" not in said


async def test_a_proxy_that_is_gone_is_a_sentence(kubectl: Path) -> None:
    """A lack of memory ended it: the monitor and the search say so, and nothing is removed."""
    found = await Workloads.open("shop")
    await found.find()
    os.kill(int((kubectl / "pid").read_text()), signal.SIGKILL)
    await ended(kubectl)
    with pytest.raises(Unreachable, match=r"--kubernetes: .*cannot be reached"):
        await found.find()
    await found.close()
