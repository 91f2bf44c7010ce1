"""Puts a policy from a file, unless its application has one: what somebody has changed since stays as it is."""

import os
import re
import sys
import urllib.error
import urllib.request
from pathlib import Path

TOKEN = Path("/run/weir/operator")
METADATA = re.compile(r"^metadata: {namespace: ([a-z0-9-]+), name: ([a-z0-9-]+)}$", re.MULTILINE)


def ask(method: str, url: str, body: bytes | None = None) -> int:
    """The status of the answer."""
    headers = {"Authorization": f"Bearer {TOKEN.read_text().strip()}", "Content-Type": "application/yaml"}
    request = urllib.request.Request(url, data=body, method=method, headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=15) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        if error.code != 404:
            print(f"policy: {method} {url}: {error.code} {error.read(2000).decode(errors='replace')}", file=sys.stderr)
        return error.code
    except OSError as error:
        print(f"policy: {method} {url}: {error}", file=sys.stderr)
        return 0


def main() -> int:
    """Variables in the file are filled in."""
    text = os.path.expandvars(Path(sys.argv[1]).read_text())
    if (metadata := METADATA.search(text)) is None:
        print(
            f"policy: {sys.argv[1]} does not begin as those here do: metadata: {{namespace: …, name: …}}",
            file=sys.stderr,
        )
        return 2
    application = f"{metadata[1]}/{metadata[2]}"
    url = f"http://knowledge:8080/v1/policies/{application}"
    if ask("GET", url) == 200:
        print(f"policy: {application} has one already")
        return 0
    done = ask("PUT", url, text.encode()) in (200, 201)
    print(f"policy: {application} {'has one now' if done else 'has none'}")
    return 0 if done else 1


if __name__ == "__main__":
    sys.exit(main())
