"""The error tree. Every error that a client may see has a code, an HTTP status and, where SQL raises it, an SQLSTATE.

QueenError
├── BadRequest         400  bad_request      QM010   names the field, the limit and the fix
├── Unauthorized       401  unauthorized
├── NotFound           404  not_found        QM008   no such queue, partition, message
├── Conflict           409  conflict
│   ├── QueueFull      409  queue_full               maxSize reached
│   └── LeaseHeld      409  lease_held       QM007   a seek under a live lease without force
├── TooLarge           413  too_large
├── SealRequired       400  seal_required    QM006   plain payload for a queue that demands encryption
├── Unavailable        503  unavailable              back-pressure, database away; Retry-After
│   └── Busy           503  busy             55P03   a lock was not to be had in time
├── SetupError         (start-up: says what to do, no traceback)
└── Retry              (never leaves the server: the sidecar acts on it)
    ├── PartitionGone       QM001   fewer lookup rows than asked: make or wake first, call again
    ├── ConfigChanged       QM003   the queue's config_version moved on: reload, call again
    └── GroupGone           QM009   the consumer group's row is no longer there: resolve by name again

SQL functions raise their own SQLSTATE; `from_sqlstate` is the one place that translates. Never does a message here carry a
payload, a key or a password.
"""

from __future__ import annotations


class QueenError(Exception):
    """Root: `str(error)` is the text that the client reads."""

    code = "internal"
    status = 500
    sqlstate: str | None = None
    retry_after: int | None = None


class BadRequest(QueenError):
    code, status, sqlstate = "bad_request", 400, "QM010"


class SealRequired(QueenError):
    code, status, sqlstate = "seal_required", 400, "QM006"


class Unauthorized(QueenError):
    code, status = "unauthorized", 401


class NotFound(QueenError):
    code, status, sqlstate = "not_found", 404, "QM008"


class Conflict(QueenError):
    code, status = "conflict", 409


class QueueFull(Conflict):
    code = "queue_full"


class LeaseHeld(Conflict):
    code, sqlstate = "lease_held", "QM007"


class TooLarge(QueenError):
    code, status = "too_large", 413


class Unavailable(QueenError):
    code, status, retry_after = "unavailable", 503, 1


class Busy(Unavailable):
    code, sqlstate = "busy", "55P03"


class SetupError(QueenError):
    """Start-up can't go on; the text says what is wrong and what to do about it."""

    code = "setup"


class Retry(QueenError):
    """A shared call had no effect and is to be made again after the named step."""


class PartitionGone(Retry):
    sqlstate = "QM001"


class ConfigChanged(Retry):
    sqlstate = "QM003"


class GroupGone(Retry):
    sqlstate = "QM009"


def _by_sqlstate() -> dict[str, type[QueenError]]:
    found: dict[str, type[QueenError]] = {}
    pending: list[type[QueenError]] = [QueenError]
    while pending:
        kind = pending.pop()
        pending.extend(kind.__subclasses__())
        state = kind.__dict__.get("sqlstate")
        if state is not None:
            found[state] = kind
    return found


BY_SQLSTATE = _by_sqlstate()


def from_sqlstate(state: str | None, text: str) -> QueenError | None:
    """The error that an SQL function meant, or None when the state is none of ours."""
    kind = BY_SQLSTATE.get(state or "")
    return kind(text) if kind else None
