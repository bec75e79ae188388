"""The drill's judge, judged: a run without a fault has none, and each planted fault is counted as what it is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from drills.checker import FAULTS, Grant, Group, Ledger, Part, Verdict, identity, judge
from drills.journal import Journal, read

A, B = "lease-a", "lease-b"


class Run:
    """One producer (stream 7), one group, partition 1: ten messages, delivered in two batches of five, each settled."""

    def __init__(self) -> None:
        self.ledger = Ledger()
        self.ids = list(self.ledger.take(7, 10))
        self.ledger.acknowledged.update(self.ids)
        self.ledger.seqs.update({message: seq for seq, message in enumerate(self.ids, 1)})
        self.group = Group(
            parts=[Part("one", 1, A, range(1, 6), self.ids[:5]), Part("two", 1, B, range(6, 11), self.ids[5:])],
            grants={(1, A): Grant(1, 100.0, 102.0), (1, B): Grant(2, 101.0, 103.0)},
            completed=[(A, self.ids[:5]), (B, self.ids[5:])],
        )
        self.deaths: dict[str, float] = {}

    def again(self, at: float, seqs: range, *, lease: str = "lease-c", consumer: str = "three") -> None:
        """Delivers these once more, under a lease granted at that moment."""
        self.group.grants[1, lease] = Grant(3, at, at + 2.0)
        self.group.parts.append(Part(consumer, 1, lease, seqs, [self.ids[seq - 1] for seq in seqs]))

    def verdict(self) -> Verdict:
        return judge(self.ledger, {"group": self.group}, self.deaths)


def counted(verdict: Verdict) -> dict[str, int]:
    return {name: count for name in FAULTS if (count := getattr(verdict, name))}


def test_a_run_without_fault_has_none() -> None:
    verdict = Run().verdict()
    assert (verdict.acknowledged, verdict.deliveries) == (10, 10)
    assert counted(verdict) == {}
    assert verdict.examples == []


def test_a_message_that_the_cursor_skipped_is_lost_for_that_group() -> None:
    run = Run()
    run.group.parts[1] = Part("two", 1, B, range(7, 11), run.ids[6:])
    whole = Group(list(Run().group.parts), dict(run.group.grants))
    verdict = judge(run.ledger, {"group": run.group, "other": whole}, {})
    assert counted(verdict) == {"lost": 1}
    assert "7/5 was acknowledged and never delivered to group" in verdict.examples[0]


def test_the_planted_cursor_loses_what_began_earlier_and_committed_later() -> None:
    """Ten transactions commit in this order; the cursor is (moment of beginning, id), read after each commit."""
    run = Run()
    began = [1, 2, 4, 3, 5, 6, 9, 7, 8, 10]  # by order of commit
    cursor, seqs = 0, []
    for seq, moment in enumerate(began, 1):
        if moment > cursor:
            cursor = moment
            seqs.append(seq)
    run.group.parts = [Part("one", 1, A, seqs, [run.ids[seq - 1] for seq in seqs])]
    assert counted(run.verdict()) == {"lost": 3}


def test_what_nobody_acknowledged_may_be_there_or_not() -> None:
    run = Run()
    extra = run.ledger.take(7, 2)
    run.group.parts.append(Part("two", 1, B, [11], [extra[0]]))
    assert counted(run.verdict()) == {}


@pytest.mark.parametrize("message", [identity(7, 10), identity(8, 0)])
def test_a_message_that_nobody_sent_is_unexpected(message: int) -> None:
    run = Run()
    run.group.parts.append(Part("two", 1, B, [11], [message]))
    assert counted(run.verdict()) == {"unexpected": 1}


def test_a_message_that_was_rolled_back_is_unexpected() -> None:
    run = Run()
    run.ledger.acknowledged.discard(run.ids[9])
    run.ledger.refused.add(run.ids[9])
    assert counted(run.verdict()) == {"unexpected": 1}


def test_a_delivery_after_the_lease_ran_out_is_no_duplicate() -> None:
    run = Run()
    run.group.completed.clear()
    run.again(103.5, range(6, 11))
    assert counted(run.verdict()) == {}


def test_a_delivery_inside_a_live_lease_is_a_duplicate() -> None:
    run = Run()
    run.group.completed.clear()
    run.again(102.9, range(6, 11))
    verdict = run.verdict()
    assert counted(verdict) == {"duplicates": 5}
    assert "0.100 s before the end of lease-b" in verdict.examples[0]


def test_what_a_consumer_gave_back_may_come_again_at_once() -> None:
    run = Run()
    run.group.completed[1] = (B, run.ids[6:])
    run.group.returned.add((B, run.ids[5]))
    run.again(101.2, range(6, 7))
    assert counted(run.verdict()) == {}


def test_what_a_killed_consumer_held_may_come_again_at_once() -> None:
    run = Run()
    run.group.completed.clear()
    run.again(101.2, range(6, 11))
    run.deaths["two"] = 101.1
    assert counted(run.verdict()) == {}
    run.deaths["two"] = 101.3
    assert counted(run.verdict()) == {"duplicates": 5}


def test_a_settled_message_never_comes_again() -> None:
    run = Run()
    run.again(500.0, range(6, 7))
    assert counted(run.verdict()) == {"duplicates": 1}


def test_one_claim_in_two_hands_is_a_duplicate() -> None:
    run = Run()
    run.group.parts.append(replace(run.group.parts[1], consumer="three"))
    assert counted(run.verdict())["duplicates"] == 5


def test_a_claim_over_a_live_lease_is_a_duplicate_even_when_nobody_heard_of_it() -> None:
    run = Run()
    run.group.grants[1, "lease-c"] = Grant(3, 101.5, 103.5, over_live=True)
    assert counted(run.verdict()) == {"duplicates": 1}


def test_a_message_stored_twice_is_a_duplicate() -> None:
    run = Run()
    run.ledger.seqs.clear()
    run.group.completed.clear()
    run.group.grants[1, "lease-c"] = Grant(3, 104.0, 106.0)
    run.group.parts.append(Part("three", 1, "lease-c", [11], [run.ids[9]]))
    assert counted(run.verdict())["duplicates"] == 1


def _swapped(run: Run) -> None:
    run.group.parts[0] = Part("one", 1, A, [1, 2, 4, 3, 5], [run.ids[at] for at in (0, 1, 3, 2, 4)])


def _late(run: Run) -> None:
    run.group.parts[0] = Part("one", 1, A, [1, 2, 3, 4], run.ids[:4])
    run.group.completed[0] = (A, run.ids[:4])
    run.again(104.0, range(5, 6))


@pytest.mark.parametrize("plant", [_swapped, _late])
def test_a_message_delivered_after_a_later_one_is_out_of_order(plant: Callable[[Run], None]) -> None:
    run = Run()
    plant(run)
    assert counted(run.verdict()) == {"reordered": 1}


def test_a_producers_acknowledged_messages_keep_his_order() -> None:
    run = Run()
    run.ledger.seqs.clear()
    run.group.parts[0] = Part("one", 1, A, range(1, 6), [run.ids[at] for at in (0, 1, 3, 2, 4)])
    assert counted(run.verdict()) == {"reordered": 1}


def test_journals_are_read_in_the_order_of_the_claims() -> None:
    run = Run()
    run.group.parts.reverse()
    assert counted(run.verdict()) == {}


def test_a_delivery_without_a_claim_in_the_database_is_told() -> None:
    run = Run()
    del run.group.grants[1, A]
    assert counted(run.verdict()) == {"unleased": 1}


def test_half_a_transaction_is_torn() -> None:
    run = Run()
    missing = run.ledger.take(9, 2)
    run.ledger.together += [tuple(run.ids[:3]), (run.ids[3], *missing), tuple(missing)]
    assert counted(run.verdict()) == {"torn": 1}


def test_another_seq_than_the_producer_was_told_is_misplaced() -> None:
    run = Run()
    run.ledger.seqs[run.ids[4]] = 6
    assert counted(run.verdict()) == {"misplaced": 1}


def test_a_journal_survives_a_writer_killed_in_mid_line(tmp_path: Path) -> None:
    path = tmp_path / "group-0.journal"
    journal = Journal(path)
    journal.delivered(A, [1, 1, 2], [1, 2, 1], [identity(7, 0), identity(7, 1), identity(7, 2)])
    journal.returning(A, [identity(7, 1)])
    journal.completed(A, [identity(7, 0)])
    journal.pushing([identity(9, 0), identity(9, 1)])
    journal.pushed([identity(9, 0), identity(9, 1)], done=True)
    journal.pushing([identity(9, 2)])
    journal.pushed([identity(9, 2)], done=False)
    journal.trouble("pop", 503)
    with path.open("ab") as file:
        file.write(b'["d","lease-b",[1')
    group, ledger = Group(), Ledger()
    assert read(path, group, ledger) == {"pop_503": 1}
    assert [(part.consumer, part.partition, list(part.seqs)) for part in group.parts] == [("group-0", 1, [1, 2]), ("group-0", 2, [1])]
    assert group.returned == {(A, identity(7, 1))}
    assert [(lease, list(ids)) for lease, ids in group.completed] == [(A, [identity(7, 0)])]
    assert ledger.acknowledged == {identity(9, 0), identity(9, 1)}
    assert ledger.refused == {identity(9, 2)}
    assert ledger.together == [(identity(9, 0), identity(9, 1)), (identity(9, 2),)]
    assert ledger.sent == {9: 3}
