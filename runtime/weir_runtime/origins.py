"""Refuses browser requests of other sites' pages, which could otherwise command a listener on loopback.

Needs Starlette only: the load generator's image has nothing else of this package.
"""

import ipaddress
import re
from collections.abc import Collection, Sequence
from contextlib import suppress

from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

Refusal = tuple[int, str, str]
"""Status, title and sentence."""

_SAFE_METHODS = {"GET", "HEAD", "OPTIONS"}
_HOST = re.compile(r"(\[[0-9a-f:.]+\]|[^\s:/@\[\]]+)(:\d{0,5})?")
_DOCUMENT = re.compile(r"[a-z]+/([a-z0-9.+_-]+[.+-])?(json|yaml)")
_SHOWN = 60
"""Characters of a header in a refusal."""


def is_loopback(host: str) -> bool:
    """Return whether only this machine can reach a listener on this address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


class SameOrigin:
    """ASGI middleware that responds 421 to a foreign `Host` (DNS rebinding), 403 to a foreign `Origin` and to other
    sites' requests, and 415 to a change whose body is neither JSON nor YAML, such as a form.

    `hosts` are the listener's names and addresses next to those of loopback; a wildcard address includes every IP
    address. Browsers always send a host.
    """

    def __init__(self, app: ASGIApp, hosts: Collection[str] = ()) -> None:
        self._app = app
        self._hosts = {host.lower() for host in hosts}
        self._any_address = bool(self._hosts & {"0.0.0.0", "::"})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        refusal = self._refusal(scope["method"], Headers(scope=scope)) if scope["type"] == "http" else None
        if refusal is None:
            await self._app(scope, receive, send)
            return
        status, title, detail = refusal
        body = {"type": "about:blank", "title": title, "status": status, "detail": detail}
        answer = JSONResponse(body, status, {"Connection": "close"}, media_type="application/problem+json")
        await answer(scope, receive, send)

    def _refusal(self, method: str, headers: Headers) -> Refusal | None:
        hosts, origins = headers.getlist("host"), headers.getlist("origin")
        for host in hosts:
            if not self._is_own(host.lower()):
                detail = f"host {host[:_SHOWN]!r} is not this listener's: add it to WEIR_ALLOWED_HOSTS"
                return 421, "Misdirected", detail
        for origin in origins:
            if not any(_same(origin.lower(), host.lower()) for host in hosts):
                detail = f"origin {origin[:_SHOWN]!r} is another site: only this listener's own pages may"
                return 403, "Forbidden", detail
        if _of_another_site(method, headers):
            return 403, "Forbidden", "the request comes from another site's page: only this listener's own pages may"
        return None if method in _SAFE_METHODS else _form(headers.getlist("content-type"))

    def _is_own(self, host: str) -> bool:
        matched = _HOST.fullmatch(host)
        if matched is None:
            return False
        name = matched[1].strip("[]").rstrip(".")
        if name in self._hosts or is_loopback(name):
            return True
        with suppress(ValueError):
            return self._any_address and bool(ipaddress.ip_address(name))
        return False


def _same(origin: str, host: str) -> bool:
    """Return whether an `Origin` names this `Host`; each may omit the scheme's default port."""
    scheme, _, place = origin.partition("://")
    port = {"http": ":80", "https": ":443"}.get(scheme)
    return port is not None and place.removesuffix(port) == host.removesuffix(port)


def _of_another_site(method: str, headers: Headers) -> bool:
    """Return whether the browser says so. A link that opens a page is allowed: its response is shown, not read."""
    site = headers.get("sec-fetch-site", "none")
    opens = method in _SAFE_METHODS and headers.get("sec-fetch-dest") == "document"
    return site not in ("none", "same-origin") and not opens


def _form(types: Sequence[str]) -> Refusal | None:
    for each in types:
        kind = each.partition(";")[0].strip().lower()
        if not _DOCUMENT.fullmatch(kind):
            detail = f"content type {kind[:_SHOWN]!r} is not accepted: send application/json or application/yaml"
            return 415, "Unsupported media type", detail
    return None
