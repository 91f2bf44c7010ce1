"""`python -m workloads.loadgen.set_load rate=2400`: sets the load of this machine's generator and prints the state.

For containers, where only the generator itself reaches its API: `docker compose exec load python -m …`.
"""

import json
import os
import sys
import urllib.error
import urllib.request
from collections.abc import Sequence
from typing import Any

from pydantic import ValidationError

from .load import LoadChange

DEFAULT_PORT = 8090


def parse(arguments: Sequence[str]) -> dict[str, Any]:
    """Parse `name=value` arguments into fields of `LoadChange`; raises `ValueError` that names a wrong one."""
    document: dict[str, Any] = {}
    for argument in arguments:
        name, equals, text = argument.partition("=")
        try:
            document[name] = json.loads(text)
        except ValueError:
            raise ValueError(f"{argument}: must be name=value; a value is null, true, false or a number") from None
        if not equals or name not in LoadChange.model_fields:
            raise ValueError(f"{argument}: unknown; fields are {', '.join(LoadChange.model_fields)}")
    try:
        LoadChange.model_validate(document)
    except ValidationError as error:
        first = error.errors()[0]
        raise ValueError(f"{first['loc'][0]}: {first['msg']}") from None
    return document


def main(arguments: Sequence[str] | None = None) -> int:
    """Set the load; returns 0 and prints the state, 1 if the generator does not answer, 2 for wrong arguments."""
    given = sys.argv[1:] if arguments is None else list(arguments)
    if not given or given[0] in ("-h", "--help"):
        fields = "\n".join(f"  {name}=…  {info.description or ''}" for name, info in LoadChange.model_fields.items())
        sys.stdout.write(f"{__doc__}\n{fields}\n")
        return 0 if given else 2
    try:
        body = json.dumps(parse(given)).encode()
    except ValueError as error:
        sys.stderr.write(f"set_load: {error}\n")
        return 2
    url = f"http://127.0.0.1:{os.environ.get('WEIR_LOAD_PORT') or DEFAULT_PORT}/load"
    request = urllib.request.Request(url, body, {"Content-Type": "application/json"}, method="PUT")
    try:
        direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with direct.open(request, timeout=10) as answer:
            sys.stdout.write(answer.read().decode() + "\n")
    except urllib.error.HTTPError as error:
        sys.stderr.write(f"set_load: {error.code} {error.read(500).decode(errors='replace')}\n")
        return 1
    except OSError as error:
        sys.stderr.write(f"set_load: {url}: {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
