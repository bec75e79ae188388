"""A naive model of the queue, in memory and one step at a time: what the contract says, with no thought of speed.

It knows nothing of locks, indexes or `ready_at`: only which messages a claim gives, what an ack answers and what is settled after it.
Invariant: within one group of one partition a seq is settled once and stays so until a seek.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from uuid import UUID


@dataclass
class Options:
    """A queue's options, as far as they decide what is delivered and when; seconds, but for the retry delay."""

    lease_time: int = 10
    retry_limit: int = 1
    retry_delay_ms: int = 2000
    delay: int = 0
    window: int = 0
    window_most: int = 0
    ttl: int | None = None


@dataclass
class Message:
    """One stored message."""

    transaction_id: str
    created: datetime
    not_before: datetime | None = None
    audience: str | None = None


@dataclass
class Lease:
    """A batch that was given out, by its range."""

    id: UUID
    lo: int
    hi: int
    until: datetime
    answered: dict[int, str] = field(default_factory=dict)
    open: set[int] = field(default_factory=set)


@dataclass
class Place:
    """Where one group stands in one partition."""

    cursor: int
    acked: set[int] = field(default_factory=set)
    attempts: dict[int, tuple[int, datetime]] = field(default_factory=dict)
    lease: Lease | None = None
    last: Lease | None = None

    def settled(self, seq: int) -> bool:
        return seq <= self.cursor or seq in self.acked

    def settle(self, seqs: set[int]) -> None:
        self.acked |= {seq for seq in seqs if seq > self.cursor}
        while self.cursor + 1 in self.acked:
            self.cursor += 1
            self.acked.discard(self.cursor)
        self.attempts = {seq: tries for seq, tries in self.attempts.items() if not self.settled(seq)}

    def end_lease(self) -> None:
        lease = self.lease
        assert lease is not None
        lease.open = {seq for seq in range(lease.lo, lease.hi + 1) if not self.settled(seq)}
        self.last, self.lease = lease, None


@dataclass
class Partition:
    """A dense sequence of messages and every group's place in it."""

    next: int = 1
    first: int = 1
    last_created: datetime | None = None
    messages: dict[int, Message] = field(default_factory=dict)
    removed: set[int] = field(default_factory=set)
    places: dict[str, Place] = field(default_factory=dict)
    asleep: bool = False

    def find(self, transaction_id: str) -> int | None:
        return next((seq for seq, message in self.messages.items() if message.transaction_id == transaction_id), None)

    def met_by(self, lease: Lease) -> bool:
        """Whether something of the batch was removed."""
        return any(lease.lo <= seq <= lease.hi for seq in self.removed)

    def ours(self, seq: int, group: str) -> bool:
        return self.messages[seq].audience in (None, group)


Answer = tuple[bool, str | None, bool]


class Model:
    """One queue."""

    def __init__(self, options: Options, names: list[str], now: datetime) -> None:
        self.options = options
        self.now = now
        self.partitions = {name: Partition() for name in names}
        self.groups: list[str] = []
        self.dead: list[tuple[str, int, str]] = []

    def make_group(self, group: str, mode: str, moment: datetime | None) -> None:
        if group in self.groups:
            return
        self.groups.append(group)
        for part in self.partitions.values():
            if part.asleep:
                continue
            start = part.first
            if mode == "new":
                start = part.next
            elif mode == "from":
                assert moment is not None
                start = self.seq_at(part, moment)
            part.places[group] = Place(start - 1)

    @staticmethod
    def seq_at(part: Partition, moment: datetime) -> int:
        """Where a group starts that wants everything since that moment: no message before it is as young."""
        older = [seq for seq, message in part.messages.items() if message.created < moment]
        return max(older, default=part.first - 1) + 1

    def push(self, name: str, items: list[tuple[str, float | None]]) -> list[tuple[int, bool]]:
        part = self.partitions[name]
        if part.asleep:
            part.asleep, part.first = False, part.next
            part.places = {group: Place(part.first - 1) for group in self.groups}
        created = max(self.now, part.last_created or self.now)
        answers = []
        for transaction_id, delay in items:
            known = part.find(transaction_id)
            if known is not None:
                answers.append((known, True))
                continue
            later = self.now + timedelta(seconds=delay) if delay else None
            part.messages[part.next] = Message(transaction_id, created, later)
            part.last_created = created
            answers.append((part.next, False))
            part.next += 1
        return answers

    def count_failure(self, name: str, group: str, seq: int, at_once: bool, delay_ms: int | None = None) -> bool:
        """Whether the message is dead now."""
        place = self.partitions[name].places[group]
        count = place.attempts.get(seq, (0, self.now))[0] + (0 if at_once else 1)
        if not at_once and count <= self.options.retry_limit:
            wait = self.options.retry_delay_ms if delay_ms is None else delay_ms
            place.attempts[seq] = (count, self.now + timedelta(milliseconds=wait))
            return False
        self.dead.append((name, seq, group))
        place.settle({seq})
        return True

    def _expire(self, name: str, group: str) -> None:
        part = self.partitions[name]
        place = part.places[group]
        lease = place.lease
        if lease is None or lease.until > self.now:
            return
        waiting = [
            seq
            for seq in range(lease.lo, lease.hi + 1)
            if seq in part.messages and not place.settled(seq) and seq not in lease.answered and part.ours(seq, group)
        ]
        place.end_lease()
        if waiting:
            self.count_failure(name, group, waiting[0], False, 0)

    def claim(self, name: str, group: str, batch: int, lease: UUID, seconds: int | None) -> list[tuple[int, int]]:
        """What one partition gives: (seq, attempts)."""
        part = self.partitions[name]
        place = part.places[group]
        if place.lease is not None and place.lease.until > self.now:
            return []
        place.settle(set(range(place.cursor + 1, part.first)))
        self._expire(name, group)
        taken: list[int] = []
        skipped: set[int] = set()
        for seq in range(place.cursor + 1, part.next):
            if place.settled(seq):
                continue
            message = part.messages.get(seq)
            if message is None or not part.ours(seq, group) or self._too_old(message):
                skipped.add(seq)
            elif self._due(place, seq, message) > self.now:
                break
            else:
                taken.append(seq)
                if len(taken) == batch:
                    break
        place.settle(skipped)
        if not taken or self._in_window(part, part.messages[taken[0]].created):
            return []
        until = self.now + timedelta(seconds=self.options.lease_time if seconds is None else seconds)
        place.lease = Lease(lease, taken[0], taken[-1], until)
        return [(seq, place.attempts.get(seq, (0, self.now))[0]) for seq in taken]

    def _too_old(self, message: Message) -> bool:
        return self.options.ttl is not None and message.created + timedelta(seconds=self.options.ttl) <= self.now

    def _due(self, place: Place, seq: int, message: Message) -> datetime:
        due = message.created + timedelta(seconds=self.options.delay)
        if message.not_before is not None:
            due = max(due, message.not_before)
        if seq in place.attempts:
            due = max(due, place.attempts[seq][1])
        return due

    def _in_window(self, part: Partition, oldest: datetime) -> bool:
        if not self.options.window:
            return False
        assert part.last_created is not None
        quiet = part.last_created + timedelta(seconds=self.options.window)
        return min(quiet, oldest + timedelta(seconds=self.options.window_most)) > self.now

    def would_give(self, name: str, group: str) -> bool:
        """Whether a claim would give something now."""
        return bool(copy.deepcopy(self).claim(name, group, 1, UUID(int=0), None))

    def ack(self, name: str, group: str, lease: UUID | None, acks: list[tuple[str, str]]) -> tuple[list[Answer], bool]:
        """Each ack's (success, error, dead), and whether a lease ended."""
        part = self.partitions[name]
        place = part.places[group]
        leased = place.lease is not None
        answers = [self._ack(name, group, lease, transaction_id, status) for transaction_id, status in acks]
        current = place.lease
        if current is not None and current.until > self.now and not self._open(part, place, group):
            place.end_lease()
        return answers, leased and place.lease is None

    @staticmethod
    def _open(part: Partition, place: Place, group: str) -> list[int]:
        lease = place.lease
        assert lease is not None
        return [
            seq
            for seq in range(lease.lo, lease.hi + 1)
            if seq in part.messages and not place.settled(seq) and seq not in lease.answered and part.ours(seq, group)
        ]

    def _ack(self, name: str, group: str, lease_id: UUID | None, transaction_id: str, status: str) -> Answer:
        part = self.partitions[name]
        place = part.places[group]
        seq = part.find(transaction_id)
        lease = place.lease
        live = lease is not None and lease.until > self.now
        if lease_id is not None and not (lease is not None and live and lease.id == lease_id):
            return self._again(part, place, lease_id, seq, status)
        if seq is None:
            met = lease is not None and live and part.met_by(lease)
            return (True, "removed", False) if met else (False, "Message not found", False)
        within = lease is not None and lease.lo <= seq <= lease.hi
        if lease is not None and live and within and seq in lease.answered:
            first = lease.answered[seq]
            same = first.removesuffix("-dead") == status
            return same, None if same else f"Already answered: {first.removesuffix('-dead')}", same and first in ("dlq", "failed-dead")
        if place.settled(seq):
            return status == "completed", None if status == "completed" else "Already settled", False
        if lease_id is not None and not within:
            return False, "Not a message of this lease", False
        if status == "completed":
            place.settle({seq})
            return True, None, False
        dead = status != "retry" and self.count_failure(name, group, seq, status == "dlq")
        if lease is not None and within:
            lease.answered[seq] = "failed-dead" if dead and status == "failed" else status
        return True, None, dead

    @staticmethod
    def _again(part: Partition, place: Place, lease_id: UUID, seq: int | None, status: str) -> Answer:
        """An ack under a lease that isn't live: what it was answered the first time, if it was."""
        refused: Answer = (False, "Invalid or expired lease", False)
        old = next((lease for lease in (place.last, place.lease) if lease is not None and lease.id == lease_id), None)
        if old is None:
            return refused
        if seq is None:
            return (True, "removed", False) if part.met_by(old) else refused
        unsettled = seq in old.open if old is place.last else not place.settled(seq)
        first = old.answered.get(seq, None if unsettled else "completed")
        if not old.lo <= seq <= old.hi or first is None or first.removesuffix("-dead") != status:
            return refused
        return True, None, first in ("dlq", "failed-dead")

    def extend(self, lease_id: UUID, seconds: int) -> bool:
        live = self._live(lease_id)
        for place in live:
            assert place.lease is not None
            place.lease.until = max(place.lease.until, self.now + timedelta(seconds=seconds))
        return bool(live)

    def release(self, lease_id: UUID, settled: bool) -> None:
        for place in self._live(lease_id):
            place.end_lease()
            assert place.last is not None
            if settled:
                place.last.open = set()
                place.settle(set(range(place.last.lo, place.last.hi + 1)))

    def _live(self, lease_id: UUID) -> list[Place]:
        places = [place for part in self.partitions.values() for place in part.places.values()]
        return [place for place in places if place.lease is not None and place.lease.id == lease_id and place.lease.until > self.now]

    def remove(self, name: str, seqs: set[int]) -> int:
        """Any stretch of seqs that have been given."""
        part = self.partitions[name]
        gone = [seq for seq in seqs if part.messages.pop(seq, None) is not None]
        part.removed |= seqs
        left = [seq for seq in range(part.first, part.next) if seq in part.messages or seq not in part.removed]
        part.first = min(left, default=part.next)
        for group, place in part.places.items():
            place.settle(seqs)
            if place.lease is not None and place.lease.until > self.now and not self._open(part, place, group):
                place.end_lease()
        return len(gone)

    def seek(self, name: str, group: str, seq: int | None, moment: datetime | None) -> None:
        """Without seq and moment: to the end."""
        part = self.partitions[name]
        to = part.next if seq is None else seq
        if moment is not None:
            to = self.seq_at(part, moment)
        part.places[group] = Place(max(part.first, min(part.next, to)) - 1)

    def sleep(self, name: str) -> bool:
        part = self.partitions[name]
        if not part.asleep and not part.messages:
            part.asleep, part.places = True, {}
            return True
        return False
