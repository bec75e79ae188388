"""The error tree: what SQL raises is translated in one place, and what a client sees has a status."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import queenmq.postgres
from queenmq import errors

# raised and never seen by a client of the server: a caller's slip, a plain INSERT that names seq, caught within the transaction itself
INTERNAL = {"QM002", "QM005", "QM011"}
FUNCTIONS = Path(queenmq.postgres.__file__).parent / "sql" / "functions"


def _tree(kind: type[errors.QueenError]) -> list[type[errors.QueenError]]:
    return [kind, *(found for child in kind.__subclasses__() for found in _tree(child))]


@pytest.mark.parametrize(
    ("state", "kind", "status"),
    [
        ("QM006", errors.SealRequired, 400),
        ("QM007", errors.LeaseHeld, 409),
        ("QM008", errors.NotFound, 404),
        ("QM010", errors.BadRequest, 400),
        ("55P03", errors.Busy, 503),
        ("QM001", errors.PartitionGone, 500),
        ("QM003", errors.ConfigChanged, 500),
        ("QM009", errors.GroupGone, 500),
    ],
)
def test_a_state_becomes_its_error_with_the_text_of_sql(state: str, kind: type[errors.QueenError], status: int) -> None:
    error = errors.from_sqlstate(state, "what happened")
    assert type(error) is kind
    assert (str(error), kind.status) == ("what happened", status)


@pytest.mark.parametrize("state", [None, "", "23505", "QM999"])
def test_a_foreign_state_is_none_of_ours(state: str | None) -> None:
    assert errors.from_sqlstate(state, "x") is None


def test_no_two_errors_share_a_state_and_all_are_in_the_docstring() -> None:
    own = [kind for kind in _tree(errors.QueenError) if kind.__dict__.get("sqlstate")]
    states = [kind.sqlstate for kind in own]
    assert len(states) == len(set(states))
    for kind in (kind for kind in _tree(errors.QueenError)[1:] if kind.__module__ == errors.__name__):
        assert kind.__name__ in (errors.__doc__ or "")
        if kind.__dict__.get("sqlstate"):
            assert re.search(rf"{kind.__name__}\b.*{kind.sqlstate}", errors.__doc__ or "")


def test_every_state_that_the_sql_functions_raise_is_known() -> None:
    raised = {state for file in FUNCTIONS.glob("*.sql") for state in re.findall(r"ERRCODE\s*=\s*'(QM\d\d\d)'", file.read_text())}
    assert raised
    assert raised <= set(errors.BY_SQLSTATE) | INTERNAL


def test_what_may_be_tried_again_says_when() -> None:
    assert errors.Unavailable.retry_after == errors.Busy.retry_after == 1
