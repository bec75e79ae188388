"""The Python client: `Queen` (async) and `SyncQueen`. Imports nothing of the server."""

from queenmq.client.consumer import Consumer, Messages
from queenmq.client.errors import (
    AckRefused,
    BadReply,
    BadRequest,
    Conflict,
    Forbidden,
    LeaseLost,
    NotFound,
    NotReachable,
    OutcomeUnknown,
    PushFailed,
    QueenClientError,
    Refused,
    TooLarge,
    TransactionFailed,
    Unavailable,
    UsageError,
)
from queenmq.client.message import Acked, Committed, Configured, Item, Message, Pushed
from queenmq.client.queen import Queen, Queue, Transaction
from queenmq.client.sync import SyncQueen

__all__ = [
    "AckRefused",
    "Acked",
    "BadReply",
    "BadRequest",
    "Committed",
    "Configured",
    "Conflict",
    "Consumer",
    "Forbidden",
    "Item",
    "LeaseLost",
    "Message",
    "Messages",
    "NotFound",
    "NotReachable",
    "OutcomeUnknown",
    "PushFailed",
    "Pushed",
    "Queen",
    "QueenClientError",
    "Queue",
    "Refused",
    "SyncQueen",
    "TooLarge",
    "Transaction",
    "TransactionFailed",
    "Unavailable",
    "UsageError",
]
