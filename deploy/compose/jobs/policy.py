"""Puts a policy from a file, once: what somebody has changed or deleted since stays as it is.

What was put, or was found there, is remembered in a volume; `docker compose down -v` forgets it.
"""

import os
import re
import sys
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path

KNOWLEDGE = "http://knowledge:8080"
TOKEN = Path("/run/weir/operator")
REMEMBERED = Path("/var/lib/weir/policies")
PATIENCE_SECONDS = 120.0
PAUSE_SECONDS = 2.0
DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))
"""Docker may put its user's proxy into the environment; the token goes to the service itself."""
METADATA = re.compile(r"^metadata: {namespace: ([a-z0-9-]+), name: ([a-z0-9-]+)}$", re.MULTILINE)


def say(text: str) -> None:
    """To whoever reads the container's log."""
    print(f"policy: {text}", file=sys.stderr, flush=True)


def ask(method: str, url: str, body: bytes | None = None) -> tuple[int, str]:
    """The status of the answer, 0 if there was none, and a line that tells it."""
    headers = {"Authorization": f"Bearer {TOKEN.read_text().strip()}", "Content-Type": "application/yaml"}
    if method == "PUT":
        headers["If-None-Match"] = "*"  # never over one that came meanwhile
    request = urllib.request.Request(url, data=body, method=method, headers=headers)
    try:
        with DIRECT.open(request, timeout=15) as answer:
            return int(answer.status), f"{method} {url}: {answer.status}"
    except urllib.error.HTTPError as error:
        return error.code, f"{method} {url}: {error.code} {error.read(2000).decode(errors='replace')}".rstrip()
    except OSError as error:
        return 0, f"{method} {url}: {error}"


def put_once(url: str, body: bytes) -> str:
    """What was done: only where there certainly is none is one put. Anything else but that there is one is no answer, and asked
    for again for a while; `TimeoutError` with the last of it."""
    deadline, told = time.monotonic() + PATIENCE_SECONDS, ""
    while True:
        status, line = ask("GET", url)
        if status == 200:
            return "has one already"
        if status == 404:
            status, line = ask("PUT", url, body)
            if status in (200, 201):
                return "has one now"
        if line != told:
            say(line)
            told = line
        if time.monotonic() >= deadline:
            raise TimeoutError(line)
        threading.Event().wait(PAUSE_SECONDS)


def main() -> int:
    """Variables in the file are filled in."""
    text = os.path.expandvars(Path(sys.argv[1]).read_text())
    if (metadata := METADATA.search(text)) is None:
        say(f"{sys.argv[1]} does not begin as those here do: metadata: {{namespace: …, name: …}}")
        return 2
    application = f"{metadata[1]}/{metadata[2]}"
    mark = REMEMBERED / f"{metadata[1]}.{metadata[2]}"
    if mark.exists():
        say(f"{application} has had one, and is yours since")
        return 0
    if not os.access(REMEMBERED, os.W_OK):
        say(f"{REMEMBERED} cannot be written to: what is put could not be remembered, so nothing is")
        return 1
    try:
        done = put_once(f"{KNOWLEDGE}/v1/policies/{application}", text.encode())
    except TimeoutError as error:
        say(f"{application}: not within {PATIENCE_SECONDS:g} s; the last answer: {error}")
        return 1
    mark.touch()
    say(f"{application} {done}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
