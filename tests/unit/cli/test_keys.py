"""The keys of the screen of `weir run`, on a pseudo-terminal: the policies are written while it goes on, and the terminal
is afterwards as it was, whatever ends the process."""

import asyncio
import os
import signal
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import yaml

from tests.unit.cli.pseudo_terminal import UNEXPECTED, Shown, in_terminal
from weir_cli import single_run
from weir_cli.advice import Advice
from weir_cli.client import InvalidInput
from weir_cli.discovery import LABEL
from weir_cli.single_run import Display, Key, PolicyFolder
from weir_cli.terminal import keyboard, say
from weir_contracts import ScalingPolicy, parse_policy
from weir_knowledge.summary import Summary
from weir_runtime.clock import SystemClock
from weir_runtime.loop import Stop

APPLICATION = "default/orders"


def found_policy(application: str = APPLICATION, maximum: int | None = None) -> ScalingPolicy:
    namespace, name = application.split("/")
    spec: dict[str, Any] = {
        "application": {"flink": {"url": "http://jobmanager:8081", "job": name}},
        "objective": {"maxLatency": "30s"},
    }
    if maximum is not None:
        spec["bounds"] = {"max": maximum}
    return parse_policy(
        {
            "apiVersion": "weir.dev/v1alpha1",
            "kind": "ScalingPolicy",
            "metadata": {"namespace": namespace, "name": name, "labels": {LABEL: "flink"}},
            "spec": spec,
        }
    )


def advice(application: str = APPLICATION) -> Advice:
    return Advice(Summary(application=application, mode="advise"), None, None)


def screen_on_terminal(folder: Path, reacts: Callable[[int, int, str], object], *, fails: bool = False) -> Shown:
    """The screen of one application until a signal; with `fails` the third reading raises an exception."""
    readings = 0

    async def reading(*_: Any) -> list[Advice]:
        nonlocal readings
        readings += 1
        if fails and readings > 2:
            raise RuntimeError("the reading failed")
        return [advice()]

    async def write(shown: Sequence[Advice]) -> str:
        return PolicyFolder(folder).write(shown, [found_policy()])

    async def shown() -> None:
        stop = Stop()
        stop.on_signals()
        display = Display(mock.Mock(), SystemClock(), lambda _: ["12 s"], "WARNING")
        display.keys = {"w": Key("writes the policies", write)}
        await display.follow(stop, lambda _: False)

    with mock.patch.object(single_run, "read_advice", reading), mock.patch.object(single_run, "REDRAW_SECONDS", 0.05):
        return in_terminal(100, lambda: asyncio.run(shown()), reacts)


def test_w_writes_the_policies_while_the_process_goes_on(tmp_path: Path) -> None:
    """The screen names the key before, and says afterwards what was written; it is drawn again after that."""
    pressed: list[str] = []

    def reacts(pid: int, terminal: int, screen: str) -> None:
        if not pressed and "w writes the policies" in screen:
            pressed.append("w")
            os.write(terminal, b"xw")
        if screen.count("1 policy written to") >= 2:
            os.kill(pid, signal.SIGINT)

    shown = screen_on_terminal(tmp_path / "weir-policies", reacts)
    assert (shown.code, shown.is_restored) == (0, True)
    assert f"1 policy written to {tmp_path / 'weir-policies'}"[:90] in " ".join(shown.lines)
    written = parse_policy(yaml.safe_load((tmp_path / "weir-policies" / "default-orders.yaml").read_text()))
    assert written.application == APPLICATION


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_leaves_the_terminal_as_it_was(tmp_path: Path, number: int) -> None:
    """Characters are echoed again, and lines are read whole."""
    sent: list[int] = []

    def reacts(pid: int, _terminal: int, screen: str) -> None:
        if not sent and "w writes" in screen:
            sent.append(number)
            os.kill(pid, number)

    shown = screen_on_terminal(tmp_path, reacts)
    assert (sent, shown.code, shown.is_restored) == ([number], 0, True)


def test_an_exception_leaves_the_terminal_as_it_was(tmp_path: Path) -> None:
    """The screen fails while keys are read."""
    shown = screen_on_terminal(tmp_path, lambda *_: None, fails=True)
    assert (shown.code, shown.is_restored) == (UNEXPECTED, True)
    assert "w writes the policies" in shown.raw


def test_keys_are_neither_echoed_nor_wait_for_a_line() -> None:
    """While the block lasts the terminal has other modes: the other tests would pass without any."""
    seen: list[bool] = []

    def run() -> None:
        with keyboard() as keys:
            assert keys is not None
            say("ready")
            while not keys.pressed():
                pass
            say("pressed")

    def reacts(_pid: int, terminal: int, screen: str) -> None:
        if not seen and "ready" in screen:
            seen.append(True)
            os.write(terminal, b"w")

    shown = in_terminal(80, run, reacts)
    assert (shown.lines, shown.is_restored) == (["ready", "pressed"], True)


def test_without_a_terminal_there_is_no_key(tmp_path: Path) -> None:
    """A pipe, a closed input, and none at all."""
    with (tmp_path / "file").open("w+") as file, mock.patch("sys.stdin", file), keyboard() as keys:
        assert keys is None
    with mock.patch("sys.stdin", file), keyboard() as keys:
        assert keys is None
    with mock.patch("sys.stdin", None), keyboard() as keys:
        assert keys is None


def test_a_process_in_the_background_leaves_the_keys_to_the_shell() -> None:
    """A read, and a change of the terminal, would stop it."""

    def run() -> None:
        if os.fork() == 0:
            os.setpgid(0, 0)
            with keyboard() as keys:
                say("keys" if keys else "no keys")
            os._exit(0)
        os.wait()

    shown = in_terminal(80, run)
    assert (shown.lines, shown.code) == (["no keys"], 0)


def test_a_file_that_the_user_changed_is_never_replaced(tmp_path: Path) -> None:
    """Own files are written again; one with another content stays, and is named."""
    folder = PolicyFolder(tmp_path)
    assert folder.write([advice()], [found_policy()]) == f"1 policy written to {tmp_path}"
    assert folder.write([advice()], [found_policy(maximum=8)]) == f"1 policy written to {tmp_path}"
    file = tmp_path / "default-orders.yaml"
    file.write_text(file.read_text().replace("mode: advise", "mode: act") + "# mine\n")
    mine = file.read_text()
    said = folder.write([advice(), advice("default/clicks")], [found_policy(), found_policy("default/clicks")])
    assert file.read_text() == mine
    assert said == (
        f"1 policy written to {tmp_path}; default-orders.yaml differs and stays: delete it to have it written"
    )


def test_a_file_of_an_earlier_process_is_refreshed(tmp_path: Path) -> None:
    """The same policy with other comments: only the reasons are new."""
    PolicyFolder(tmp_path).write([advice()], [found_policy()])
    file = tmp_path / "default-orders.yaml"
    written = file.read_text()
    file.write_text("# an older reason\n" + written)
    PolicyFolder(tmp_path).write([advice()], [found_policy()])
    assert file.read_text() == written


def test_a_folder_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    """At the start of the command: one sentence with the place, and a remedy."""
    (tmp_path / "file").write_text("")
    for place, reason in ((tmp_path / "file", "File exists"), (tmp_path / "file" / "x", "Not a directory")):
        with pytest.raises(InvalidInput) as refusal:
            PolicyFolder(place).check()
        assert str(refusal.value) == f"--write: {place} cannot be written: {reason}; name another folder"
    PolicyFolder(tmp_path / "new" / "folder").check()
    assert list((tmp_path / "new" / "folder").iterdir()) == []
