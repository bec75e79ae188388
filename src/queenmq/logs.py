"""Structured logs over the standard library: one event a line, as logfmt or JSON, to standard error.

Never carries a payload, a key or a password: callers pass names and numbers as `extra`. Invariant: a line is one line, whatever is in it.
Use: `log = logging.getLogger(__name__)`, `log.info("what happened", extra={"queue": name})`.
"""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime
from typing import Literal, TextIO

_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
_PLAIN = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-.:/@+")


def _pairs(record: logging.LogRecord) -> dict[str, object]:
    moment = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    found: dict[str, object] = {"time": moment, "level": record.levelname.lower(), "logger": record.name, "event": record.getMessage()}
    found |= {name: value for name, value in vars(record).items() if name not in _STANDARD and name not in found}
    if record.exc_info:
        found["exception"] = logging.Formatter().formatException(record.exc_info)
    return found


class LogfmtFormatter(logging.Formatter):
    """time=… level=… logger=… event="…" name=value …"""

    def format(self, record: logging.LogRecord) -> str:
        return " ".join(f"{name}={self._value(value)}" for name, value in _pairs(record).items())

    @staticmethod
    def _value(value: object) -> str:
        text = ("true" if value else "false") if isinstance(value, bool) else "" if value is None else str(value)
        return text if text and _PLAIN.issuperset(text) else json.dumps(text, ensure_ascii=False)


class JsonFormatter(logging.Formatter):
    """One JSON object a line."""

    def format(self, record: logging.LogRecord) -> str:
        return json.dumps(_pairs(record), ensure_ascii=False, default=str)


def configure(level: str, form: Literal["logfmt", "json"] | str = "logfmt", stream: TextIO | None = None) -> None:
    """Replaces whatever handlers the root logger has. Called once, at start-up."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JsonFormatter() if form == "json" else LogfmtFormatter())
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    # these say at `info` what our own lines say better
    for name in ("httpx", "httpcore", "uvicorn", "asyncio"):
        logging.getLogger(name).setLevel(max(logging.WARNING, logging.getLevelName(level.upper())))
