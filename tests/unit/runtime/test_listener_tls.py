"""TLS of a listener: its certificate, another one in its place, and files that cannot be used."""

import asyncio
import shutil
import ssl
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from testbed.kubernetes_access import Authority, Certificate
from tests.unit.runtime.test_settings import Settings
from weir_runtime import probe
from weir_runtime.followed_files import follow
from weir_runtime.http import application, listen, serve
from weir_runtime.listener_tls import ListenerTls
from weir_runtime.loop import Stop

pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="no openssl to make certificates with")


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    made = Authority(tmp_path_factory.mktemp("authority"))
    made.create()
    return made


def installed(issued: Certificate, folder: Path) -> Certificate:
    """Put a certificate where the listener reads it."""
    there = Certificate(folder / "tls.crt", folder / "tls.key")
    there.certificate.write_bytes(issued.certificate.read_bytes())
    there.key.write_bytes(issued.key.read_bytes())
    return there


async def common_name(port: int, authority: Authority) -> str:
    """Return the name in the certificate that a new connection gets, verified by the authority."""
    context = ssl.create_default_context(cafile=str(authority.certificate))
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context, server_hostname="localhost")
    subject = writer.get_extra_info("peercert")["subject"]
    writer.close()
    return str(dict(pair for part in subject for pair in part)["commonName"])


async def test_a_renewed_certificate_is_used_by_new_connections(authority: Authority, tmp_path: Path) -> None:
    """cert-manager replaces the files of a running service. Half a replacement keeps the present certificate, with one
    line in the log."""
    first, second = (authority.issue(name, names=["DNS:localhost"]) for name in ("first", "second"))
    files = installed(first, tmp_path)
    tls, stop = ListenerTls(files.certificate, files.key), Stop()
    bound = listen("127.0.0.1", 0)
    port = int(bound.getsockname()[1])
    serving = asyncio.create_task(serve(application("Oven", "Bakes."), bound, stop, tls=tls))
    assert await common_name(port, authority) == "first"

    files.certificate.write_bytes(second.certificate.read_bytes())  # its key is not there yet
    renewing = Stop()
    with capture_logs() as lines:
        kept = asyncio.create_task(follow([tls.files], renewing, check_seconds=0.01))
        async with asyncio.timeout(10.0):
            while not lines:  # noqa: ASYNC110 - log lines have no event
                await asyncio.sleep(0.01)
        assert lines[0]["event"] == "file-unusable"
        assert await common_name(port, authority) == "first"
        installed(second, tmp_path)
        async with asyncio.timeout(10.0):
            # Between its two files the replacement may be read in half once more.
            while lines[-1]["event"] != "file-read":  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        renewing.request("enough")
        await kept
    assert await common_name(port, authority) == "second"
    stop.request("enough")
    await asyncio.wait_for(serving, 10.0)


async def test_the_health_check_of_a_container_finds_a_listener_with_tls(authority: Authority, tmp_path: Path) -> None:
    """It asks its own listener, whose certificate has another name than loopback's."""
    files = installed(authority.issue("knowledge", names=["DNS:knowledge.weir.svc"]), tmp_path)
    stop, bound = Stop(), listen("127.0.0.1", 0)
    app = application("Oven", "Bakes.")

    @app.get("/health/ready")
    async def ready() -> None: ...

    serving = asyncio.create_task(serve(app, bound, stop, tls=ListenerTls(files.certificate, files.key)))
    port = int(bound.getsockname()[1])
    assert await asyncio.to_thread(probe.ask, "127.0.0.1", port, tls=True) == ""
    assert "no answer" in await asyncio.to_thread(probe.ask, "127.0.0.1", port)
    stop.request("enough")
    await asyncio.wait_for(serving, 10.0)


def test_unusable_files_end_the_start_with_the_setting(
    authority: Authority, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A missing file, a key of another certificate, and one file without the other."""
    first, second = authority.issue("first"), authority.issue("second")
    monkeypatch.setenv("WEIR_HTTP_CERTIFICATE_FILE", str(first.certificate))
    for key, reason in ((tmp_path / "missing", "No such file"), (second.key, "KEY_VALUES_MISMATCH")):
        monkeypatch.setenv("WEIR_HTTP_KEY_FILE", str(key))
        with pytest.raises(ValueError, match=f"WEIR_HTTP_KEY_FILE: cannot be used together: .*{reason}"):
            Settings()
    monkeypatch.delenv("WEIR_HTTP_KEY_FILE")
    with pytest.raises(ValueError, match="belong together"):
        Settings()
