"""Creates the Secret `tokens` with the services' bearer tokens and the operator's. An existing Secret stays."""

import json
import secrets
import ssl
import sys
import urllib.error
import urllib.request
from pathlib import Path

ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
API = "https://kubernetes.default.svc"
TIMEOUT_SECONDS = 15


def tokens() -> dict[str, str]:
    """Return the Secret's content: each service mounts the keys that it needs, the operator's is for you."""
    operator, executor, knowledge, metrics = (secrets.token_urlsafe(32) for _ in range(4))
    scraper = {metrics: {"name": "metrics", "role": "metrics"}}
    people = {operator: {"name": "operator", "role": ["write", "planner-admin"]}, **scraper}
    return {
        "operator": operator,
        "executor": executor,
        "knowledge": knowledge,
        "metrics": metrics,
        "knowledge-callers": json.dumps({**people, executor: {"name": "executor", "role": "executor"}}),
        "planner-callers": json.dumps({**people, knowledge: {"name": "knowledge", "role": "read"}}),
        # Of monitor, analyzer and executor only health, which needs no token, and metrics are used.
        "no-callers": json.dumps(scraper),
    }


def create(api: str, account: Path) -> str:
    """Create the Secret in the account's namespace; returns what was done. `HTTPError` if the API server refuses."""
    namespace = (account / "namespace").read_text()
    document = {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": "tokens", "labels": {"app.kubernetes.io/part-of": "weir"}},
        "stringData": tokens(),
    }
    request = urllib.request.Request(
        f"{api}/api/v1/namespaces/{namespace}/secrets",
        data=json.dumps(document).encode(),
        headers={"Authorization": f"Bearer {(account / 'token').read_text()}", "Content-Type": "application/json"},
    )
    trusted = ssl.create_default_context(cafile=str(account / "ca.crt"))
    # Without proxies: the account's token must reach only the API server.
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=trusted))
    try:
        with direct.open(request, timeout=TIMEOUT_SECONDS):
            return "made new tokens"
    except urllib.error.HTTPError as error:
        if error.code == 409:
            return "the Secret exists already"
        raise


def main() -> int:
    """Return 0 if the Secret exists now, 1 to be started again."""
    try:
        print(f"tokens: {create(API, ACCOUNT)}")
    except OSError as error:
        print(f"tokens: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
