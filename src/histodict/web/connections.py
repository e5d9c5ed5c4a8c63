"""Connections that cannot be held for ever by somebody who never finishes a request.

A request must have arrived whole so many seconds after its first byte, or after the connection was
made. Of connections whose request is still to come there are at most so many: a further one takes
the place of that which has waited longest. So whoever opens many and says little shuts nobody out.
"""

from __future__ import annotations

import asyncio
from typing import ClassVar

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

_MOST_SECONDS = 20.0
_MOST_WAITING = 100


class BoundedProtocol(H11Protocol):
    """One connection."""

    _waiting: ClassVar[dict[BoundedProtocol, asyncio.TimerHandle]] = {}  # longest first

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._wait()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        has_begun = bool(self.conn.trailing_data[0]) or self.conn.their_state is not h11.IDLE
        is_whole = self.conn.their_state in (h11.DONE, h11.MUST_CLOSE, h11.CLOSED, h11.ERROR)
        if is_whole or not has_begun:
            self._wait_no_more()
        elif self not in self._waiting:
            self._wait()

    def connection_lost(self, exc: Exception | None) -> None:
        self._wait_no_more()
        super().connection_lost(exc)

    def _wait(self) -> None:
        if len(self._waiting) >= _MOST_WAITING:
            next(iter(self._waiting))._give_up()
        self._waiting[self] = self.loop.call_later(_MOST_SECONDS, self._give_up)

    def _wait_no_more(self) -> None:
        timer = self._waiting.pop(self, None)
        if timer is not None:
            timer.cancel()

    def _give_up(self) -> None:
        self._wait_no_more()
        self.transport.abort()
