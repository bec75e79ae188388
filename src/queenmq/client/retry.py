"""When a failed request may be sent again, and after how long: plain functions over the failure, the attempt and a random number.

Never sleeps and never sends. Invariant: what `may_repeat` allows can't make anything happen twice.
"""

from __future__ import annotations

from queenmq.client.errors import NotReachable, OutcomeUnknown, QueenClientError, Unavailable
from queenmq.client.wire import Request

FIRST_PAUSE = 0.1
LONGEST_PAUSE = 5.0


def may_repeat(request: Request, failure: QueenClientError) -> bool:
    """Whether sending `request` again after `failure` is safe and makes sense."""
    match failure:
        case NotReachable():
            return True
        case OutcomeUnknown():
            return request.after_loss
        case Unavailable(status=502 | 504):
            # a proxy speaks: the server behind it may have done it
            return request.after_loss
        case Unavailable(nothing_done=True):
            return True
        case Unavailable():
            return request.after_refusal
        case _:
            return False


def may_have_been_done(failure: QueenClientError) -> bool:
    """Whether the request may have had its effect although it failed."""
    return isinstance(failure, OutcomeUnknown) or (isinstance(failure, Unavailable) and not failure.nothing_done)


def pause(attempt: int, draw: float, retry_after: float | None = None) -> float:
    """Seconds before attempt number `attempt` + 1 (the first was 1); `draw` is random in [0, 1).

    What the server asked for is the least, spread by a fifth so that clients don't come back together; else doubling, half of it random.
    """
    if retry_after is not None:
        return retry_after * (1 + draw / 5)
    whole = min(LONGEST_PAUSE, FIRST_PAUSE * 2.0 ** min(attempt - 1, 16))
    return whole * (1 + draw) / 2
