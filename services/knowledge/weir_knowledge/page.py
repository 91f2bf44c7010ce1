"""The page at `/`: files that were built from `web/`, which need no token and hold nothing of any application.

What it shows it reads from the API, with a token that the user gives it where one is needed.
"""

import hashlib
from collections.abc import Callable, Mapping
from importlib.resources import files

from fastapi import APIRouter, Request, Response

POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self'",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
        "trusted-types 'none'",
    )
)
"""Content security policy: nothing inline, nothing of another host, and no text becomes markup or a script."""
HEADERS = {
    "Content-Security-Policy": POLICY,
    "Cache-Control": "no-cache",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}
_FILES: Mapping[str, tuple[str, str]] = {
    "/": ("index.html", "text/html; charset=utf-8"),
    "/page/page.js": ("page.js", "text/javascript; charset=utf-8"),
    "/page/page.css": ("page.css", "text/css; charset=utf-8"),
    "/page/icon.svg": ("icon.svg", "image/svg+xml"),
}
PATHS = frozenset(_FILES)
"""Of the page's files. They need no token: a browser has none to send with an address that is typed."""


def page_router() -> APIRouter:
    """Return the routes of the page's files."""
    routes = APIRouter(include_in_schema=False)
    for path, (name, media_type) in _FILES.items():
        routes.add_api_route(path, _file(name, media_type), methods=["GET", "HEAD"], response_class=Response)
    return routes


def _file(name: str, media_type: str) -> Callable[[Request], Response]:
    content = files("weir_knowledge").joinpath("bundle", name).read_bytes()
    tag = f'"{hashlib.sha256(content).hexdigest()[:32]}"'
    headers = HEADERS | {"ETag": tag}

    def answer(request: Request) -> Response:
        if request.headers.get("if-none-match") == tag:
            return Response(status_code=304, headers=headers)
        return Response(content, media_type=media_type, headers=headers)

    return answer
