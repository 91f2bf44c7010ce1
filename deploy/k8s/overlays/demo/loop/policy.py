"""Puts the sample job's policy once knowledge and planner accept it; never replaces one."""

import sys
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path

URL = "http://knowledge:8080/v1/policies/demo/orders"
TIMEOUT_SECONDS = 600.0
PAUSE_SECONDS = 2.0
DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))
"""Without proxies: the token must reach only the service."""


def put(url: str, policy: bytes, token: str) -> tuple[bool, str]:
    """Return whether there is a policy now, and a sentence about the response."""
    headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/yaml", "If-None-Match": "*"}
    request = urllib.request.Request(url, data=policy, method="PUT", headers=headers)
    try:
        with DIRECT.open(request, timeout=15) as response:
            return True, f"stored ({response.status})"
    except urllib.error.HTTPError as error:
        return error.code == 409, f"{error.code} {error.read(2000).decode(errors='replace')}"
    except OSError as error:
        return False, str(error)


def main() -> int:
    """Return 0 once there is a policy, 1 with the last reason after ten minutes."""
    policy, token = Path("/jobs/policy.yaml").read_bytes(), Path("/run/weir/operator").read_text()
    deadline, logged = time.monotonic() + TIMEOUT_SECONDS, ""
    while True:
        done, sentence = put(URL, policy, token)
        if sentence != logged:
            print(f"policy: {sentence}", file=sys.stderr, flush=True)
            logged = sentence
        if done or time.monotonic() >= deadline:
            return 0 if done else 1
        threading.Event().wait(PAUSE_SECONDS)


if __name__ == "__main__":
    sys.exit(main())
