"""The tutorial, as a user reads it: its blocks are taken out and run, in their order, in a folder of their own."""

import os
import re
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import httpx

from testbed.process import wait_until

ROOT = Path(__file__).parents[1]
TUTORIAL = ROOT / "docs" / "tutorials" / "own-planner.md"
BLOCK = re.compile(r"(<!-- not run[^>]*-->\n)?```(\w+)\n(.*?)```", re.DOTALL)
WAIT_SECONDS = 60.0


@dataclass
class Reader:
    """Types what the tutorial says into a shell."""

    folder: Path
    environment: dict[str, str]
    port: int
    """Where the planner is to listen: 8097 may be taken here."""
    background: list[subprocess.Popen[bytes]] = field(default_factory=list)
    printed: list[str] = field(default_factory=list)

    def reads(self) -> None:
        """Run it to its end without the steps that tests leave out; the planner still runs then."""
        for skipped, language, text in BLOCK.findall(TUTORIAL.read_text()):
            if not skipped:
                self.does(language, text)

    def ends(self) -> None:
        """Stop what runs in the background; each has to end in order."""
        for process in self.background:
            process.terminate()
        assert [process.wait(30) for process in self.background] == [0] * len(self.background)

    def does(self, language: str, text: str) -> None:
        text = text.replace("8097", str(self.port))
        named = re.match(r"# (\w+\.\w+|Dockerfile)\n", text)
        if named is not None:
            (self.folder / named[1]).write_text(text.removeprefix(named[0]))
            return
        if language == "python":
            self._runs(["python", "-c", text])
            return
        for line in text.splitlines():
            if line.startswith("cd "):
                self.folder /= line.removeprefix("cd ")
            elif line.endswith(" &"):
                command = [*line.removesuffix(" &").split(), "--port", str(self.port)]
                self.background.append(subprocess.Popen(command, cwd=self.folder, env=self.environment))
                self._answers()
            else:
                self._runs(["bash", "-euo", "pipefail", "-c", line])

    def _runs(self, command: list[str]) -> None:
        ran = subprocess.run(
            command, cwd=self.folder, env=self.environment, capture_output=True, text=True, timeout=300, check=False
        )
        assert ran.returncode == 0, f"{command[-1]}\n{ran.stdout}\n{ran.stderr}"
        self.printed.append(ran.stdout)

    def _answers(self) -> None:
        def ready() -> bool:
            assert self.background[-1].poll() is None, "the planner ended"
            try:
                return httpx.get(f"http://127.0.0.1:{self.port}/health/ready").is_success
            except httpx.TransportError:
                return False

        wait_until(ready, timeout_seconds=WAIT_SECONDS, what="the planner answers")


def shell() -> dict[str, str]:
    """Environment of a shell; `weir` and the tests' Python are found first."""
    return {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "HOME": os.environ.get("HOME", "/"),
        "LANG": "C.UTF-8",
    }
