"""queen.execute_transaction in the fewest words."""

from __future__ import annotations

import uuid
from dataclasses import dataclass, field

from tests.sql.support import Ack, Connection, Item

CALL = """
SELECT * FROM queen.execute_transaction($1, $2, $3, $4, $5, $6, NULL, NULL, NULL, NULL, NULL,
                                        $7, $8, $9, $10, $11, $12, $13, $14, $15, p_skip => $16)
"""


@dataclass
class Transaction:
    """All or nothing."""

    items: list[Item] = field(default_factory=list)
    acks: list[Ack] = field(default_factory=list)
    leases: list[uuid.UUID] = field(default_factory=list)


@dataclass
class Done:
    """By position, over all transactions of the call."""

    outcomes: list[int]
    failures: list[str | None]
    seqs: list[int | None]
    duplicates: list[bool | None]
    successes: list[bool | None]
    errors: list[str | None]


async def execute(pg: Connection, *transactions: Transaction, skip: bool = False) -> Done:
    items = [(number, one) for number, each in enumerate(transactions, 1) for one in each.items]
    acks = [(number, one) for number, each in enumerate(transactions, 1) for one in each.acks]
    leases = [(number, one) for number, each in enumerate(transactions, 1) for one in each.leases]
    parts = sorted({one.partition for _, one in items})
    row = await pg.fetchrow(
        CALL, len(transactions), parts,
        [number for number, _ in items], [parts.index(one.partition) + 1 for _, one in items],
        [one.transaction_id for _, one in items], [one.payload for _, one in items],
        [number for number, _ in acks], [one.partition for _, one in acks], [one.group for _, one in acks],
        [one.transaction_id for _, one in acks], [one.status for _, one in acks], [one.error for _, one in acks],
        [one.lease for _, one in acks], [number for number, _ in leases], [one for _, one in leases], skip,
    )  # fmt: skip
    assert row is not None
    return Done(row["outcomes"], row["failures"], row["item_seqs"], row["item_duplicates"], row["ack_successes"], row["ack_errors"])
