"""What can go wrong for a caller of the client; each error has a text, a hint at what to do and, where the server spoke, its status.

QueenClientError
├── UsageError             a wrong argument; found before anything was sent (also a ValueError)
├── NotReachable           nothing was sent: no connection before the deadline
├── OutcomeUnknown         it was sent and no answer came: it may or may not have been done
├── BadReply               an answer that is none of this protocol
├── Refused                the server said no
│   ├── BadRequest         400      ├── Forbidden   401, 403    ├── NotFound   404
│   ├── Conflict           409      ├── TooLarge    413
│   └── Unavailable        503, 429, and what a proxy says for it (502, 504); `retry_after` in seconds when it was named
├── PushFailed             some items were not stored before the deadline; `results` has every item's answer
├── AckRefused             an acknowledgement came too late: the lease is gone; `results` has every answer
├── LeaseLost              a lease that can't be prolonged any more
└── TransactionFailed      nothing of the transaction was done; `results` as the server gave them

Never does an error carry a payload or a token.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from queenmq.client.message import Acked, Pushed


class QueenClientError(Exception):
    """Root of all that the client raises on its own; `str(error)` is the text, with the hint after it."""

    hint = ""
    transaction_ids: tuple[str, ...] = ()
    """Of a push that went wrong: the ids it was sent with, one per item; push again with them and nothing is stored twice."""

    def __init__(self, text: str, *, hint: str | None = None, status: int | None = None) -> None:
        super().__init__(text)
        self.text = text
        self.status = status
        if hint is not None:
            self.hint = hint

    @property
    def passing(self) -> bool:
        """The server is away or unwell: later it may be different."""
        return isinstance(self, NotReachable | OutcomeUnknown | Unavailable) or (self.status or 0) >= 500

    def __str__(self) -> str:
        return f"{self.text} ({self.hint})" if self.hint else self.text


class UsageError(QueenClientError, ValueError):
    """The call itself is wrong; nothing was sent."""


class NotReachable(QueenClientError):
    """No connection was made, so nothing was sent and nothing was done."""

    hint = "is the server running, and is this its address? `./run` starts one on http://127.0.0.1:6632"


class OutcomeUnknown(QueenClientError):
    """The request left and no answer came back."""

    hint = "it may have been done or not; look before you repeat it"


class BadReply(QueenClientError):
    """Something answered, but not in this protocol."""

    hint = "does a QueenMQ server listen there, or something else?"


class Refused(QueenClientError):
    """The server answered with an error status."""


class BadRequest(Refused):
    """400: the text names the field and its limit."""


class Forbidden(Refused):
    """401 or 403."""

    hint = "give the client its token: Queen(url, token=…)"


class NotFound(Refused):
    """404."""


class Conflict(Refused):
    """409: the queue is full, or something stands in the way."""


class TooLarge(Refused):
    """413."""

    hint = "send fewer items in one request; QUEEN_MAX_BODY_MB and QUEEN_MAX_MESSAGE_KB are the server's limits"


class Unavailable(Refused):
    """503, 429, 502 or 504: not now. `nothing_done` is the server's word that the request had no effect."""

    def __init__(self, text: str, *, status: int, retry_after: float | None = None, nothing_done: bool = False) -> None:
        super().__init__(text, status=status)
        self.retry_after = retry_after
        self.nothing_done = nothing_done


class PushFailed(QueenClientError):
    """Some items could not be stored before the deadline; the others are stored."""

    hint = "push again with error.transaction_ids: what is stored already answers `duplicate`"

    def __init__(self, text: str, results: Sequence[Pushed]) -> None:
        super().__init__(text)
        self.results = list(results)


class AckRefused(QueenClientError):
    """At least one acknowledgement was not taken; the message will come again, perhaps elsewhere."""

    hint = "the handler took longer than the lease: extend it, or ask for a longer one with lease_time="

    def __init__(self, text: str, results: Sequence[Acked]) -> None:
        super().__init__(text)
        self.results = list(results)


class LeaseLost(QueenClientError):
    """The lease has ended; its messages may be with another consumer."""


class TransactionFailed(QueenClientError):
    """The server did nothing of the transaction."""

    def __init__(self, text: str, results: Sequence[Any] = ()) -> None:
        super().__init__(text)
        self.results = list(results)


REFUSALS: dict[int, type[Refused]] = {400: BadRequest, 401: Forbidden, 403: Forbidden, 404: NotFound, 409: Conflict, 413: TooLarge}
