"""What a consumer has in hand: the messages of one pop, their lease kept alive while they are worked on, their answers sent.

Answers leave as soon as there are any; what is given while a request is in flight leaves together in the next one. Knows no handler.
Invariant: after the block every message has been answered, unless the lease or the server was lost: then they come again by themselves.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Self

from queenmq.client import retry, wire
from queenmq.client.errors import LeaseLost, QueenClientError
from queenmq.client.message import Message, Status

if TYPE_CHECKING:
    from queenmq.client.queen import Queen

log = logging.getLogger("queenmq.client")

_LONGEST_ERROR = 2000
_LAST_WORDS_SECONDS = 5.0


def error_text(error: BaseException) -> str:
    """What goes to the server as the reason of a failure."""
    return f"{type(error).__name__}: {error}"[:_LONGEST_ERROR]


class InHand:
    """An async context around the work on one pop's messages."""

    def __init__(self, queen: Queen, messages: Sequence[Message], lease_time: int) -> None:
        self._queen = queen
        self._lease_id = messages[0].lease_id or ""
        self._lease_time = lease_time
        self._alive_until = queen.clock.monotonic() + lease_time
        self._open = {id(message): message for message in messages}
        self._outgoing: list[wire.AckItem] = []
        self._wake = asyncio.Event()
        self._closing = False
        self.lost = False
        """The lease has ended: what is not begun yet should not be begun."""

    async def __aenter__(self) -> Self:
        self._keeper = asyncio.create_task(self._keep_alive(), name="queenmq-lease")
        self._sender = asyncio.create_task(self._send(), name="queenmq-acks")
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if not self.lost:
            for message in list(self._open.values()):
                self.settle(message, "retry")
        self._closing = True
        self._wake.set()
        # somebody who was told to go away doesn't wait long for a server that may be gone
        patience = None if error is None or isinstance(error, Exception) else _LAST_WORDS_SECONDS
        try:
            async with asyncio.timeout(patience):
                await self._sender
        except TimeoutError:
            log.warning("the last acknowledgements could not be delivered, the messages will come again after their lease")
        finally:
            self._sender.cancel()
            self._keeper.cancel()
            await asyncio.gather(self._sender, self._keeper, return_exceptions=True)

    def settle(self, message: Message, status: Status, error: str | None = None) -> None:
        """Gives the answer for a message; only the first one counts."""
        if self._open.pop(id(message), None) is not None:
            self._outgoing.append(wire.ack_item(message, status, error))
            self._wake.set()

    async def _send(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            items, self._outgoing = self._outgoing, []
            if items:
                await self._deliver(items)
            if self._closing and not self._outgoing:
                return

    async def _deliver(self, items: list[wire.AckItem]) -> None:
        attempt = 0
        while True:
            attempt += 1
            try:
                answers = await self._queen.settle(items)
                break
            except QueenClientError as error:
                if not error.passing or self._queen.clock.monotonic() >= self._alive_until:
                    log.warning("%d acknowledgements could not be delivered, the messages will come again: %s", len(items), error)
                    return
                await asyncio.sleep(retry.pause(attempt, random.random()))
        refused = [answer for answer in answers if not answer.success]
        if refused:
            self.lost = True
            log.warning("%d acknowledgements were refused, the messages will come again: %s", len(refused), refused[0].error)

    async def _keep_alive(self) -> None:
        """Three tries in a lease's time; gives up when the lease must have ended by our own clock."""
        clock = self._queen.clock
        while not self.lost:
            await asyncio.sleep(self._lease_time / 3)
            asked = clock.monotonic()
            try:
                await self._queen.extend(self._lease_id, self._lease_time, timeout=self._lease_time / 3)
                self._alive_until = asked + self._lease_time
            except LeaseLost as error:
                # all were answered, and the last answer ended the lease: nothing is lost then
                self.lost = bool(self._open)
                if self.lost:
                    log.warning("a lease was lost while its messages were being handled: %s", error)
                return
            except QueenClientError as error:
                log.warning("a lease could not be extended: %s", error)
                self.lost = clock.monotonic() >= self._alive_until
