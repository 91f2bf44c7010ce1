"""What `weir run` says of input that it cannot use: one sentence that names the place and what to do, before anything runs."""

import asyncio
import shutil
import socket
import sqlite3
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import NamedTuple

import pytest
from aiohttp import web

from weir_cli.client import CommandError, InvalidInput, Unreachable, folder
from weir_cli.demo_run import run_demo
from weir_cli.single_run import FILE, _run
from weir_cli.single_run import Options as RunOptions

Options = partial(RunOptions, listen="127.0.0.1:0")
"""Another program of this machine may have the default's port."""


async def refusal(options: RunOptions, kind: type[CommandError] = InvalidInput) -> str:
    """Return the sentence that the command ends with."""
    with pytest.raises(CommandError) as refused:
        await _run(options)
    said = str(refused.value)
    assert type(refused.value) is kind, said
    assert "\n" not in said
    return said


async def test_a_folder_that_cannot_be_written() -> None:
    """Not even made: what stands in its place is no folder."""
    said = await refusal(Options(data=Path("/dev/null/weir")))
    assert said.startswith("--data: /dev/null/weir is not writable (")
    assert said.endswith("give this user the right to write there, or name another folder")


@pytest.mark.parametrize("option", ["--data", "--write"])
def test_a_file_where_a_folder_is_wanted(tmp_path: Path, option: str) -> None:
    """Also somewhere above it: rights would not help. A folder that does not exist yet is one."""
    file, link = tmp_path / "policy.yaml", tmp_path / "link"
    file.touch()
    link.symlink_to(tmp_path / "gone")
    for given, named in ((file, file), (file / "sub" / "folder", file), (link, link)):
        with pytest.raises(InvalidInput) as refused:
            folder(option)(str(given))
        assert str(refused.value) == f"{option}: {named} is no folder: name one"
    assert folder(option)(str(tmp_path / "new" / "folder")) == tmp_path / "new" / "folder"


class Usage(NamedTuple):
    total: int
    used: int
    free: int


async def test_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """There is no room for a new file."""
    monkeypatch.setattr(shutil, "disk_usage", lambda _: Usage(10**9, 10**9 - 5_000_000, 5_000_000))
    said = await refusal(Options(data=tmp_path))
    assert said == (
        f"--data: the disk of {tmp_path} is full (5 MB free): Weir holds and writes nothing until 32 MB are free"
    )


@pytest.mark.parametrize("is_database", [True, False])
async def test_a_file_of_another_program(tmp_path: Path, is_database: bool) -> None:
    """A database, or text: it stays as it was."""
    if is_database:
        with sqlite3.connect(tmp_path / FILE) as other:
            other.execute("CREATE TABLE bookmarks (url TEXT)")
    else:
        (tmp_path / FILE).write_text("a shopping list, longer than the header of a database " * 10)
    before = (tmp_path / FILE).read_bytes()
    said = await refusal(Options(data=tmp_path))
    assert said == (
        f"--data: {tmp_path / FILE} is a file of another program: name another folder, or move that file away"
    )
    assert (tmp_path / FILE).read_bytes() == before


WHOLE = """\
apiVersion: weir.dev/v1alpha1
kind: ScalingPolicy
metadata: {namespace: shop, name: orders}
spec:
  application: {flink: {url: "http://jobmanager:8081", job: orders}}
  objective: {maxLag: 30s}
"""


@pytest.mark.parametrize("lines", range(6))
async def test_half_a_manifest(tmp_path: Path, lines: int) -> None:
    """Cut after each of its lines: the sentence names the file and what is missing."""
    path = tmp_path / "policy.yaml"
    path.write_text("".join(WHOLE.splitlines(keepends=True)[:lines]))
    said = await refusal(Options(files=(str(path),)))
    assert said.startswith(f"{path}: ")
    missing = ["holds no document", "kind", "metadata", "spec", "spec", "objective"][lines]
    assert missing in said


@pytest.mark.parametrize("length", [20, 60, 105, 140, 180])
async def test_a_manifest_that_was_cut_within_a_line(tmp_path: Path, length: int) -> None:
    """As an upload leaves it that broke off: no YAML, or a policy with less than it needs."""
    path = tmp_path / "policy.yaml"
    path.write_text(WHOLE[:length])
    said = await refusal(Options(files=(str(path),)))
    assert said.startswith(f"{path}:")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (b"\xff\xfe\x00", "UTF-8"),
        (b'{"apiVersion": "weir.dev/v1alpha1", "kind": "Scal', ":1: is not YAML: found unexpected end of stream"),
        (b"just a sentence", "policy: must be a mapping of fields"),
        (b"- 1\n- 2\n", ", document 1: policy: must be a mapping of fields"),
    ],
)
async def test_a_file_that_is_no_manifest(tmp_path: Path, text: bytes, says: str) -> None:
    """Binary, half of a JSON document, text, numbers."""
    path = tmp_path / "policy.json"
    path.write_bytes(text)
    said = await refusal(Options(files=(str(path),)))
    assert said.startswith(str(path))
    assert says in said


@pytest.fixture
async def page() -> AsyncIterator[str]:
    """The address of a proxy that answers each request with its login page."""

    async def answer(_: web.Request) -> web.Response:
        return web.Response(text="<html><title>Sign in</title></html>", content_type="text/html")

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", answer)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    await runner.cleanup()


async def test_a_proxy_that_answers_a_page_in_place_of_flink(page: str) -> None:
    """The command ends: nobody would look at a screen without jobs for its cause."""
    said = await refusal(Options(flink=page))
    assert said.startswith(f"--flink: {page} answers, but not as Flink does")
    assert said.endswith("name the JobManager's REST address, such as http://HOST:8081")


async def test_an_address_at_which_nothing_answers() -> None:
    """A port without a listener."""
    said = await refusal(Options(flink="http://127.0.0.1:9"), Unreachable)
    assert said.startswith("--flink: nothing answers at http://127.0.0.1:9 (")
    assert said.endswith("start the cluster, or name its REST address")


@pytest.mark.parametrize("listen", ["8080", "localhost", "localhost:http", "localhost:70000", ""])
async def test_an_address_to_listen_at_that_is_none(listen: str) -> None:
    """Host and port are needed."""
    assert "is no address: write host:port" in await refusal(Options(listen=listen))


async def test_an_address_to_listen_at_that_another_program_has(monkeypatch: pytest.MonkeyPatch) -> None:
    """The option is named, since it decides here and no setting does; the demonstration says the same before its day."""
    monkeypatch.setenv("WEIR_HTTP_PORT", "1")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        expected = f"--listen: cannot listen on {address} (Address already in use): name another address, such as 127.0.0.1:8081"
        assert await refusal(Options(listen=address)) == expected
        with pytest.raises(InvalidInput) as raised:
            await asyncio.to_thread(run_demo, "rate", address)
    assert str(raised.value) == expected


async def test_a_setting_that_cannot_be_used(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A file of credentials that is not there: the sentence names the setting and the file."""
    monkeypatch.setenv("WEIR_BROKER_CREDENTIALS_FILE", str(tmp_path / "none.json"))
    said = await refusal(Options())
    assert said == f"settings: WEIR_BROKER_CREDENTIALS_FILE: cannot read {tmp_path / 'none.json'}: FileNotFoundError"
