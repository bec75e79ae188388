"""The named arguments of Queen's methods as types, for the classes that hand them on: `Queue` and `SyncQueen`.

Holds no defaults: those stand once, in Queen's signatures. Invariant: the names here are the names there (a test compares them).
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Literal, TypedDict

from queenmq.clock import Clock

SubscriptionMode = Literal["all", "new", "new-only"]


class ConnectionSettings(TypedDict, total=False):
    """See Queen."""

    token: str | None
    headers: Mapping[str, str] | None
    timeout: float
    attempt_timeout: float
    connections: int
    clock: Clock | None


class PushSettings(TypedDict, total=False):
    """See Queen.push."""

    partition: str | None
    transaction_id: str | None
    headers: Mapping[str, str] | None
    delay_seconds: float | None
    trace_id: str | None


class _Source(TypedDict, total=False):
    partition: str | None
    namespace: str | None
    task: str | None
    group: str | None
    batch: int
    partitions: int
    subscription_mode: SubscriptionMode | None
    subscription_from: str | datetime | None


class PopSettings(_Source, total=False):
    """See Queen.pop."""

    wait: bool
    timeout: float
    auto_ack: bool
    lease_time: int | None


class ConsumeSettings(_Source, total=False):
    """See Queen.consume."""

    wait: float
    lease_time: int


class ConsumerSettings(ConsumeSettings, total=False):
    """See Queen.consumer."""

    concurrency: int
    each: bool
    stop_timeout: float
