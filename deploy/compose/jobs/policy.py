"""Puts a policy from a file, once: later changes and a deletion by the user stay.

A volume remembers the applications that had a policy; `docker compose down -v` deletes it.
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
TIMEOUT_SECONDS = 120.0
PAUSE_SECONDS = 2.0
DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))
"""Without proxies: Docker may put its user's proxy into the environment, and the token must reach only the service."""
METADATA = re.compile(r"^metadata: {namespace: ([a-z0-9-]+), name: ([a-z0-9-]+)}$", re.MULTILINE)


def log(text: str) -> None:
    """Write a line to the container's log."""
    print(f"policy: {text}", file=sys.stderr, flush=True)


def ask(method: str, url: str, body: bytes | None = None) -> tuple[int, str]:
    """Return the status of the response, 0 without one, and a line that describes it."""
    headers = {"Authorization": f"Bearer {TOKEN.read_text().strip()}", "Content-Type": "application/yaml"}
    if method == "PUT":
        headers["If-None-Match"] = "*"  # never replaces a policy put meanwhile
    request = urllib.request.Request(url, data=body, method=method, headers=headers)
    try:
        with DIRECT.open(request, timeout=15) as answer:
            return int(answer.status), f"{method} {url}: {answer.status}"
    except urllib.error.HTTPError as error:
        return error.code, f"{method} {url}: {error.code} {error.read(2000).decode(errors='replace')}".rstrip()
    except OSError as error:
        return 0, f"{method} {url}: {error}"


def put_once(url: str, body: bytes) -> str:
    """Put the policy unless there is one; returns a sentence with the result.

    It is put only after a 404; other failures are retried. Raises `TimeoutError` with the last one.
    """
    deadline, logged = time.monotonic() + TIMEOUT_SECONDS, ""
    while True:
        status, line = ask("GET", url)
        if status == 200:
            return "has one already"
        if status == 404:
            status, line = ask("PUT", url, body)
            if status in (200, 201):
                return "has one now"
        if line != logged:
            log(line)
            logged = line
        if time.monotonic() >= deadline:
            raise TimeoutError(line)
        threading.Event().wait(PAUSE_SECONDS)


def main() -> int:
    """Put the policy in the file; returns the exit code."""
    text = Path(sys.argv[1]).read_text()
    if (metadata := METADATA.search(text)) is None:
        log(f"{sys.argv[1]} has no line of the form metadata: {{namespace: …, name: …}}")
        return 2
    application = f"{metadata[1]}/{metadata[2]}"
    mark = REMEMBERED / f"{metadata[1]}.{metadata[2]}"
    if mark.exists():
        log(f"{application} has had one, and is yours since")
        return 0
    if not os.access(REMEMBERED, os.W_OK):
        log(f"{REMEMBERED} cannot be written to, so no policy is put: it would be put again after a deletion")
        return 1
    try:
        done = put_once(f"{KNOWLEDGE}/v1/policies/{application}", text.encode())
    except TimeoutError as error:
        log(f"{application}: not within {TIMEOUT_SECONDS:g} s; the last response: {error}")
        return 1
    mark.touch()
    log(f"{application} {done}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
