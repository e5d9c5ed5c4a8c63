"""Who may ask: this machine's own pages, or users with a token.

- Without tokens the server answers only to names of this machine, so that a page elsewhere cannot
  reach it through a name of its own that leads here.
- With tokens every request needs one, from the cookie that the user's link sets.
- What changes something must come from our own page: a header that other pages cannot send.
"""

from __future__ import annotations

import hmac
from collections.abc import Mapping
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from .workspace import User

OWN_NAMES = frozenset({"127.0.0.1", "localhost", "::1"})
OWN_HEADER = "x-histodict"
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


class Gate:
    """Stands before the app: refuses strangers, says which user asks, adds protective headers."""

    def __init__(self, app: ASGIApp, users: Mapping[str, User], alone: User | None) -> None:
        """`users` by token; or `alone`, who needs none."""
        self._app = app
        self._users = users
        self._alone = alone

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
        address = urlsplit(f"//{request.headers.get('host', '')}")
        if self._alone is not None and address.hostname not in OWN_NAMES:
            return PlainTextResponse("this server answers to 127.0.0.1 and localhost only", 403)
        if request.method not in ("GET", "HEAD") and not _is_own(request.headers):
            return PlainTextResponse("changes are made from histodict's own pages", 403)
        # Cookies know no ports: two servers on one machine must not overwrite each other's.
        cookie = "" if self._alone else f"histodict-{address.port or 80}"
        request.state.user = self._alone or self._find(request.cookies.get(cookie, ""))
        return None if request.state.user is not None else self._welcome(request, cookie)

    def _find(self, given: str) -> User | None:
        found = None
        for token, user in self._users.items():  # all of them: time tells nothing
            if hmac.compare_digest(token.encode(), given.encode()):
                found = user
        return found

    def _welcome(self, request: Request, cookie: str) -> Response:
        """A link with a right token sets the cookie; anything else is told what is missing."""
        token = request.query_params.get("token", "")
        if request.scope["path"] != "/" or self._find(token) is None:
            return PlainTextResponse(
                "a token is needed: open the link that `histodict serve` printed for you", 401
            )
        response = RedirectResponse("/", 303)
        response.set_cookie(cookie, token, httponly=True, samesite="strict")
        return response


def _is_own(headers: Headers) -> bool:
    origin = headers.get("origin")
    same = origin is None or urlsplit(origin).netloc == headers.get("host")
    return same and OWN_HEADER in headers
