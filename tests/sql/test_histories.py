"""Any order of pushes, pops, acks, expiries, seeks, removals, sleeps and new groups: the SQL functions against a naive model."""

from __future__ import annotations

import random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.sql.history import KINDS, Broken, Step, options_from, random_steps, run
from tests.sql.support import Connection, plant

number = st.integers(0, 63)
steps = st.lists(st.tuples(st.sampled_from(KINDS), number, number, number, number), min_size=10, max_size=45)


@settings(max_examples=100, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck))
@given(seed=st.integers(0, 10_000), steps=steps)
async def test_any_history_agrees_with_the_model(clock: Connection, seed: int, steps: list[Step]) -> None:
    await run(clock, options_from(seed), steps)


PLANTED = {
    "an ack sets the cursor to that message": (
        "310_claim_carefully",
        "v_all  int8multirange := coalesce(c.acked, '{}') + p_seqs;",
        "v_all  int8multirange := int8multirange(int8range(c.cursor_seq + 1, greatest(upper(p_seqs), c.cursor_seq + 1)));",
    ),
    "a whole batch forgets other messages' attempts": ("410_ack_messages", "WHEN c.attempts IS NOT NULL\n", "WHEN false\n"),
    "a removal doesn't look at leases": ("640_remove_messages", "AND NOT queen.batch_open(c) THEN", "AND false THEN"),
    "an expired lease counts nobody's attempt": ("310_claim_carefully", "IF v_seq IS NOT NULL THEN", "IF false THEN"),
    "a claim drains what is held back": ("310_claim_carefully", "outcome := 'hold';\n    ELSE", "outcome := 'drained';\n    ELSE"),
}


@pytest.mark.parametrize("bug", PLANTED)
async def test_the_model_finds_a_planted_bug(clock: Connection, bug: str) -> None:
    await plant(clock, *PLANTED[bug])
    draw = random.Random(7)
    for _ in range(300):
        try:
            await run(clock, options_from(draw.randrange(10_000)), random_steps(draw, 40))
        except Broken:
            return
    raise AssertionError(f"300 histories didn't notice: {bug}")


async def test_what_follows_a_failed_message_that_expires_needn_t_wait_for_its_retry(clock: Connection) -> None:
    """Found by drills/sql_histories.py: the partition stayed shut until the retry moment of a message that ttl had already removed."""
    draw = random.Random(939661281)
    await run(clock, options_from(draw.randrange(10_000)), random_steps(draw, draw.randrange(10, 70)))
