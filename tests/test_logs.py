"""Structured logs: one event is one line, readable by programs."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator

import pytest

from queenmq import logs


@pytest.fixture
def written() -> Iterator[io.StringIO]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield io.StringIO()
    root.handlers[:] = handlers
    root.setLevel(level)


def test_logfmt_has_the_event_and_its_names_on_one_line(written: io.StringIO) -> None:
    logs.configure("info", "logfmt", written)
    logging.getLogger("queenmq.x").info('two\nlines "quoted"', extra={"queue": "a b", "count": 3, "live": True, "none": None})
    (line,) = written.getvalue().splitlines()
    assert 'level=info logger=queenmq.x event="two\\nlines \\"quoted\\"" queue="a b" count=3 live=true none=""' in line


def test_json_is_one_object_a_line_with_the_exception_inside(written: io.StringIO) -> None:
    logs.configure("info", "json", written)
    try:
        raise ValueError("bad")
    except ValueError:
        logging.getLogger("queenmq.x").exception("it went wrong", extra={"queue": "é"})
    (line,) = written.getvalue().splitlines()
    found = json.loads(line)
    assert (found["level"], found["event"], found["queue"]) == ("error", "it went wrong", "é")
    assert "ValueError: bad" in found["exception"]


def test_what_is_below_the_level_is_not_written(written: io.StringIO) -> None:
    logs.configure("warning", "logfmt", written)
    logging.getLogger("queenmq.x").info("quiet")
    assert written.getvalue() == ""
