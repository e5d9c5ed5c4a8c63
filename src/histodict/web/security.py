"""Who may ask: users with a token, from our own pages.

- Every request needs a token, from the cookie that the user's link sets: other users of this
  machine can reach its ports, too.
- A server for this machine alone answers only to this machine's names, so that a page elsewhere
  cannot reach it through a name of its own that leads here.
- What changes something must come from our own page: a header that other pages cannot send.
"""

from __future__ import annotations

import hmac
import re
from collections.abc import Mapping

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from .workspace import UserWorkspace

LOCAL_NAMES = frozenset({"127.0.0.1", "localhost", "::1"})
_HOST = re.compile(r"(?:\[([0-9a-fA-F:.]+)\]|([^\[\]:@/\\?#\s]+))(?::([0-9]{1,5}))?")
CSRF_HEADER = "x-histodict"
TOKEN_NEEDED = "a token is needed: open the link that `histodict serve` printed for you"
_HEADERS = {
    "Content-Security-Policy": "default-src 'self'; img-src 'self' data: blob:; "
    "frame-ancestors 'none'; base-uri 'none'; form-action 'none'; object-src 'none'",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
}


class AuthMiddleware:
    """Stands before the app: refuses strangers, says which user asks, adds protective headers."""

    def __init__(self, app: ASGIApp, users: Mapping[str, UserWorkspace], is_open: bool) -> None:
        """`users` by token; `is_open`: to other machines, by whatever name."""
        self._app = app
        self._users = users
        self._is_open = is_open

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        refusal = self._enter(Request(scope))
        await (self._app if refusal is None else refusal)(scope, receive, send_guarded)

    def _enter(self, request: Request) -> Response | None:
        """None lets the request in, with its user; else what is said instead."""
        host = _HOST.fullmatch(request.headers.get("host", ""))
        if host is None:
            return PlainTextResponse("the request does not say which server it is for", 400)
        name = str(host[1] or host[2]).lower()
        if not self._is_open and name not in LOCAL_NAMES:
            return PlainTextResponse("this server answers to 127.0.0.1 and localhost only", 403)
        if request.method not in ("GET", "HEAD") and not _is_same_origin(request.headers):
            return PlainTextResponse("changes are made from histodict's own pages", 403)
        # Cookies know no ports: two servers on one machine must not overwrite each other's.
        cookie = f"histodict-{int(host[3] or 80)}"
        request.state.user = self._find(request.cookies.get(cookie, ""))
        return None if request.state.user is not None else self._welcome(request, cookie)

    def _find(self, given: str) -> UserWorkspace | None:
        found = None
        for token, user in self._users.items():  # all of them: time tells nothing
            if hmac.compare_digest(token.encode(), given.encode()):
                found = user
        return found

    def _welcome(self, request: Request, cookie: str) -> Response:
        """A link with a right token sets the cookie; anything else is told what is missing."""
        token = request.query_params.get("token", "")
        if request.scope["path"] != "/" or self._find(token) is None:
            return PlainTextResponse(TOKEN_NEEDED, 401)
        # Not by a redirect: to one that begins at a link elsewhere, strict cookies are not sent.
        response = HTMLResponse('<meta http-equiv="refresh" content="0;url=/">')
        response.set_cookie(cookie, token, httponly=True, samesite="strict")
        return response


def _is_same_origin(headers: Headers) -> bool:
    origin = headers.get("origin")
    same = origin is None or origin.partition("://")[2] == headers.get("host")
    return same and CSRF_HEADER in headers
