"""Tier 3: partition ids by queue and name, and back. Advisory: a push to an id that sleeps or is gone ends without effect and asks anew.

Two levels, queue then partition, so that forgetting a queue is one step. Bounded; the queue that was filled first goes first.
Invariant: both directions hold the same refs.
"""

from __future__ import annotations

from dataclasses import dataclass

MOST = 1_000_000


@dataclass(slots=True, eq=False)
class PartitionRef:
    """One partition as this server knows it."""

    id: int
    name: str
    queue: str
    queue_id: int


class PartitionIdCache:
    """Names to ids and ids to names."""

    def __init__(self, most: int = MOST) -> None:
        self._queues: dict[str, dict[str, PartitionRef]] = {}
        self._ids: dict[int, PartitionRef] = {}
        self._most = most

    def __len__(self) -> int:
        return len(self._ids)

    def get(self, queue: str, partition: str) -> PartitionRef | None:
        partitions = self._queues.get(queue)
        return partitions.get(partition) if partitions is not None else None

    def by_id(self, partition_id: int) -> PartitionRef | None:
        return self._ids.get(partition_id)

    def put(self, ref: PartitionRef) -> PartitionRef:
        """Keeps a ref in place of what was known of its name and id."""
        self.forget(ref.queue, ref.name)
        other = self._ids.get(ref.id)
        if other is not None:
            self.forget(other.queue, other.name)
        while len(self._ids) >= self._most:
            self.forget_queue(next(iter(self._queues)))
        self._queues.setdefault(ref.queue, {})[ref.name] = ref
        self._ids[ref.id] = ref
        return ref

    def forget(self, queue: str, partition: str) -> None:
        partitions = self._queues.get(queue)
        old = partitions.pop(partition, None) if partitions is not None else None
        if old is not None:
            self._ids.pop(old.id, None)
            if not partitions:
                del self._queues[queue]

    def forget_queue(self, queue: str) -> None:
        for ref in self._queues.pop(queue, {}).values():
            self._ids.pop(ref.id, None)

    def clear(self) -> None:
        self._queues.clear()
        self._ids.clear()
