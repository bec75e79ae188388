"""The judge of a drill: what was sent, acknowledged, claimed, delivered and answered, compared by id. Plain functions, no clock, no I/O.

It never trusts what the server says of itself: deliveries come from the consumers' journals, claims from a trigger in the database.
Invariant: what it can't excuse it counts; `tests/test_drills.py` plants one fault of each kind and sees it counted.
"""

from __future__ import annotations

from array import array
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

FAULTS = ("lost", "unexpected", "duplicates", "reordered", "unleased", "torn", "misplaced")
STREAM_BITS = 32
EXAMPLES = 5


def identity(stream: int, number: int) -> int:
    """A message's id: who sent it, and as which of his."""
    return stream << STREAM_BITS | number


def stream_of(message: int) -> int:
    return message >> STREAM_BITS


def number_of(message: int) -> int:
    return message & (1 << STREAM_BITS) - 1


@dataclass(slots=True)
class Ledger:
    """What the producers know. An id that was sent and is neither acknowledged nor refused may be there or not."""

    sent: dict[int, int] = field(default_factory=dict)  # by stream: so many, numbered from 0
    acknowledged: set[int] = field(default_factory=set)
    refused: set[int] = field(default_factory=set)  # certain not to be there: rolled back, or told so
    together: list[tuple[int, ...]] = field(default_factory=list)  # all of them or none
    seqs: dict[int, int] = field(default_factory=dict)  # what a push's reply said

    def take(self, stream: int, count: int) -> range:
        """The stream's next ids, sent from now on."""
        first = self.sent.get(stream, 0)
        self.sent[stream] = first + count
        return range(identity(stream, first), identity(stream, first + count))

    def note(self, messages: Iterable[int]) -> None:
        """Ids that another process took."""
        for message in messages:
            stream = stream_of(message)
            self.sent[stream] = max(self.sent.get(stream, 0), number_of(message) + 1)

    def may_exist(self, message: int) -> bool:
        return number_of(message) < self.sent.get(stream_of(message), 0) and message not in self.refused


@dataclass(frozen=True, slots=True)
class Grant:
    """A claim as the database recorded it. Moments are seconds since 1970."""

    order: int
    granted: float
    until: float
    over_live: bool = False  # another lease was still live on the row


@dataclass(frozen=True, slots=True)
class Part:
    """One partition's part of one reply, as a consumer wrote it down before it answered."""

    consumer: str
    partition: int
    lease: str
    seqs: Sequence[int]
    ids: Sequence[int]


@dataclass(slots=True)
class Group:
    """All that is known of one consumer group."""

    parts: list[Part] = field(default_factory=list)
    grants: dict[tuple[int, str], Grant] = field(default_factory=dict)  # by partition and lease
    completed: list[tuple[str, Sequence[int]]] = field(default_factory=list)  # lease, ids: told that they are settled
    returned: set[tuple[str, int]] = field(default_factory=set)  # lease, id: given back by the consumer before the lease's end


@dataclass(slots=True)
class Verdict:
    """Counts. The first three say how much was seen, all others must be 0."""

    acknowledged: int = 0
    deliveries: int = 0
    redelivered: int = 0
    lost: int = 0
    unexpected: int = 0
    duplicates: int = 0
    reordered: int = 0
    unleased: int = 0
    torn: int = 0
    misplaced: int = 0
    examples: list[str] = field(default_factory=list)
    _told: Counter[str] = field(default_factory=Counter)

    def tell(self, kind: str, text: str) -> None:
        """Keeps the first few of each kind for the reader."""
        self._told[kind] += 1
        if self._told[kind] <= EXAMPLES:
            self.examples.append(f"{kind}: {text}")


def show(message: int) -> str:
    return f"{stream_of(message)}/{number_of(message)}"


def judge(ledger: Ledger, groups: Mapping[str, Group], deaths: Mapping[str, float]) -> Verdict:
    """`deaths`: when a consumer was killed; what it held may be given back at once."""
    verdict = Verdict(acknowledged=len(ledger.acknowledged))
    everywhere: set[int] = set()
    for name, group in groups.items():
        ordered = _in_order(name, group, verdict)
        seen, again = _seen(ordered)
        deliveries = sum(len(part.ids) for part in ordered)
        verdict.deliveries += deliveries
        verdict.redelivered += deliveries - len(seen)
        for message in ledger.acknowledged - seen:
            verdict.lost += 1
            verdict.tell("lost", f"{show(message)} was acknowledged and never delivered to {name}")
        _duplicates(name, group, ordered, again, deaths, verdict)
        _order(name, ordered, ledger, verdict)
        _places(name, ordered, ledger, verdict)
        everywhere |= seen
    for message in everywhere:
        if not ledger.may_exist(message):
            verdict.unexpected += 1
            verdict.tell("unexpected", f"{show(message)} was delivered and never sent, or was rolled back")
    for whole in ledger.together:
        there = sum(message in everywhere for message in whole)
        if 0 < there < len(whole):
            verdict.torn += 1
            verdict.tell("torn", f"{there} of the {len(whole)} messages of one transaction: {', '.join(map(show, whole))}")
    return verdict


def _in_order(name: str, group: Group, verdict: Verdict) -> list[Part]:
    """The parts in the order of their claims. A delivery whose claim the database doesn't know is a fault of its own."""
    known = []
    for part in group.parts:
        grant = group.grants.get((part.partition, part.lease))
        if grant is None:
            verdict.unleased += 1
            verdict.tell("unleased", f"{name} was given partition {part.partition} under lease {part.lease}, which was never granted")
        known.append((grant.order if grant else -1, part))
    for (partition, lease), grant in group.grants.items():
        if grant.over_live:
            verdict.duplicates += 1
            verdict.tell("duplicate", f"{name}: lease {lease} was granted on partition {partition} while another one was live")
    return [part for _, part in sorted(known, key=lambda each: each[0])]


def _seen(parts: list[Part]) -> tuple[set[int], set[int]]:
    """All ids, and those that were delivered more than once."""
    seen: set[int] = set()
    again: set[int] = set()
    for part in parts:
        for message in part.ids:
            if message in seen:
                again.add(message)
            seen.add(message)
    return seen, again


def _duplicates(name: str, group: Group, parts: list[Part], again: set[int], deaths: Mapping[str, float], verdict: Verdict) -> None:
    if not again:
        return
    settled: dict[int, set[str]] = defaultdict(set)
    for lease, ids in group.completed:
        for message in ids:
            if message in again:
                settled[message].add(lease)
    before: dict[int, list[tuple[Part, int]]] = defaultdict(list)
    for part in parts:
        for seq, message in zip(part.seqs, part.ids, strict=True):
            if message not in again:
                continue
            reason = next(_faults(group, message, part, seq, before[message], settled[message], deaths), None)
            if reason is not None:
                verdict.duplicates += 1
                verdict.tell("duplicate", f"{name}: {show(message)} (partition {part.partition}, seq {seq}): {reason}")
            before[message].append((part, seq))


def _faults(
    group: Group,
    message: int,
    part: Part,
    seq: int,
    before: list[tuple[Part, int]],
    settled: set[str],
    deaths: Mapping[str, float],
) -> Iterator[str]:
    """What is wrong with delivering this message here, after those deliveries."""
    grant = group.grants.get((part.partition, part.lease))
    for first, first_seq in before:
        if (first.partition, first_seq) != (part.partition, seq):
            yield f"stored twice, also as seq {first_seq} of partition {first.partition}"
        if first.lease == part.lease:
            yield f"twice under one lease {part.lease}"
        if first.lease in settled:
            yield f"again under lease {part.lease}, after it was settled under {first.lease}"
        held = group.grants.get((first.partition, first.lease))
        if held is None or grant is None or grant.granted >= held.until or (first.lease, message) in group.returned:
            continue
        if deaths.get(first.consumer, float("inf")) <= grant.granted:
            continue
        yield f"under lease {part.lease}, {held.until - grant.granted:.3f} s before the end of {first.lease}, which nobody gave back"


def _order(name: str, parts: list[Part], ledger: Ledger, verdict: Verdict) -> None:
    """First deliveries of a partition come in the order of seq, and a producer's acknowledged messages in the order he sent them in."""
    highest: dict[int, int] = {}
    newest: dict[tuple[int, int], int] = {}
    missed: dict[int, set[int]] = defaultdict(set)  # below the highest and not delivered yet
    for part in parts:
        top = highest.get(part.partition, 0)
        last = 0
        for seq, message in zip(part.seqs, part.ids, strict=True):
            if seq <= last or seq in missed[part.partition]:
                missed[part.partition].discard(seq)
                verdict.reordered += 1
                verdict.tell("reordered", f"{name}: {show(message)}, seq {seq} of partition {part.partition}, after {max(top, last)}")
            last = seq
            if seq <= top:
                continue
            missed[part.partition].update(range(top + 1, seq))
            top = seq
            key = (part.partition, stream_of(message))
            if message in ledger.acknowledged:
                if newest.get(key, -1) >= number_of(message):
                    verdict.reordered += 1
                    verdict.tell("reordered", f"{name}: {show(message)}, seq {seq}, came after {key[1]}/{newest[key]}, sent later")
                newest[key] = max(newest.get(key, -1), number_of(message))
        highest[part.partition] = top


def _places(name: str, parts: list[Part], ledger: Ledger, verdict: Verdict) -> None:
    """Each message has the seq that its producer was told."""
    for part in parts:
        for seq, message in zip(part.seqs, part.ids, strict=True):
            told = ledger.seqs.get(message, seq)
            if told != seq:
                verdict.misplaced += 1
                verdict.tell(
                    "misplaced", f"{name}: {show(message)} has seq {seq} of partition {part.partition}, its producer was told {told}"
                )


def packed(values: Iterable[int]) -> Sequence[int]:
    """A million ids in eight megabytes."""
    return array("q", values)
