"""Every setting, once: environment name, type, default, limits, meaning. The class `Settings` is the table.

Never reads a file, never guesses: a bad value is refused with the variable, the value, what is allowed and what to do. Never prints a
secret. Invariant: a `Settings` that exists is valid; `queenmq config` and docs/configuration.md are made from its fields and nothing else.
"""

from __future__ import annotations

import difflib
import ipaddress
import os
import re
import socket
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import MISSING, Field, dataclass, field, fields
from functools import cache
from pathlib import Path
from typing import Any, Literal
from urllib.parse import quote, urlsplit, urlunsplit

from queenmq.errors import SetupError
from queenmq.home import default_home

Effect = Literal["now", "later", "none"]
NOTES: Mapping[Effect, str] = {"now": "", "later": "Accepted, no effect yet.", "none": "Accepted for compatibility, has no meaning here."}
SIXTY_FOUR_HEX = "64 hexadecimal digits (make one: openssl rand -hex 32)"


def hex_key(text: str) -> bool:
    """32 bytes, written as 64 hexadecimal digits."""
    return re.fullmatch(r"[0-9a-fA-F]{64}", text) is not None


def key_list(text: str) -> bool:
    """`id:key,…`, each key as `hex_key`, no id twice."""
    parts = [part.strip().partition(":") for part in text.split(",")]
    ids = [name for name, _, _ in parts]
    return all(re.fullmatch(r"[A-Za-z0-9_.-]{1,64}", name) and hex_key(key) for name, _, key in parts) and len(set(ids)) == len(ids)


def database_address(text: str) -> bool:
    """Something that asyncpg takes as an address."""
    return urlsplit(text).scheme in ("postgresql", "postgres")


def http_address(text: str) -> bool:
    return urlsplit(text).scheme in ("http", "https") and bool(urlsplit(text).hostname)


def _row(
    section: str,
    name: str,
    default: Any,
    meaning: str,
    *,
    least: float | None = None,
    most: float | None = None,
    choices: tuple[str, ...] = (),
    check: Callable[[str], bool] | None = None,
    allowed: str = "",
    secret: bool = False,
    effect: Effect = "now",
    shown: str | None = None,
) -> Any:
    """One line of the table; `default` may be a function when it depends on the machine, `shown` is then its description."""
    notes = {
        "section": section,
        "name": name,
        "meaning": meaning,
        "least": least,
        "most": most,
        "choices": choices,
        "check": check,
        "allowed": allowed,
        "secret": secret,
        "effect": effect,
        "shown": shown,
    }
    if callable(default):
        return field(default_factory=default, metadata=notes, repr=not secret)
    return field(default=default, metadata=notes, repr=not secret)


SERVER, DATABASE, LIMITS, SEALING = "Server", "Database", "Limits", "Encryption at rest"
QUEUES, SPOOL, SYNC, WAITS, COORDINATOR = "Queues", "Spool", "Shared state between servers", "Long polls", "Coordinator"
CLIENT = "Command line"


@dataclass(frozen=True, kw_only=True)
class Settings:
    """All settings of one server. Made by `load`."""

    # fmt: off
    home: Path = _row(SERVER, "QUEENMQ_HOME", default_home,
        "What a server keeps on disk: embedded database, spool, made secrets. `--data DIR` sets it too.",
        shown="`~/.local/share/queenmq`, as root `/var/lib/queenmq`")
    host: str = _row(SERVER, "HOST", "127.0.0.1",
        "The address to listen on. Anything but a loopback address needs `--insecure` while there is no access control.")
    port: int = _row(SERVER, "PORT", 6632, "The TCP port for HTTP.", least=1, most=65535)
    num_workers: int = _row(SERVER, "NUM_WORKERS", 1, "Server processes.", least=1, most=256, effect="later")
    log_level: str = _row(SERVER, "LOG_LEVEL", "info",
        "The least serious message that is logged.", choices=("debug", "info", "warning", "error"))
    log_format: str = _row(SERVER, "LOG_FORMAT", "logfmt", "How a log line is written.", choices=("logfmt", "json"))
    server_id: str = _row(SERVER, "QUEEN_SERVER_ID", "", "This server's name among several.", shown="host name:port")
    advertised_url: str = _row(SERVER, "QUEEN_ADVERTISED_URL", "",
        "Where other servers and clients reach this one; recorded in `queen.servers`.",
        check=http_address, allowed="an address like http://queue-1:6632")
    cors_origins: tuple[str, ...] = _row(SERVER, "QUEEN_CORS_ORIGINS", (),
        "Origins that a browser may call from, separated by commas; `*` for all. None: CORS is off.")

    database_url: str = _row(DATABASE, "QUEEN_DATABASE_URL", "",
        "A PostgreSQL 15 or later. With neither this nor a `PG_*`, the embedded one is used.",
        check=database_address, allowed="postgresql://user:password@host:port/database", secret=True)
    pg_host: str = _row(DATABASE, "PG_HOST", "localhost", "The database's host, when there is no QUEEN_DATABASE_URL.")
    pg_port: int = _row(DATABASE, "PG_PORT", 5432, "Its port.", least=1, most=65535)
    pg_db: str = _row(DATABASE, "PG_DB", "postgres", "The database's name.")
    pg_user: str = _row(DATABASE, "PG_USER", "postgres", "Who connects; needs no more than the right to create a schema.")
    pg_password: str = _row(DATABASE, "PG_PASSWORD", "", "The password.", secret=True)
    db_pool_size: int = _row(DATABASE, "DB_POOL_SIZE", 16, "The most connections to the database.", least=2, most=1000)

    max_body_mb: int = _row(LIMITS, "QUEEN_MAX_BODY_MB", 16, "The largest request body, in megabytes.", least=1, most=1024)
    max_message_kb: int = _row(LIMITS, "QUEEN_MAX_MESSAGE_KB", 1024,
        "The largest payload of one message, in kilobytes.", least=1, most=262144)

    encryption_key: str = _row(SEALING, "QUEEN_ENCRYPTION_KEY", "",
        "The one key that seals and opens payloads.", check=hex_key, allowed=SIXTY_FOUR_HEX, secret=True)
    encryption_keys: str = _row(SEALING, "QUEEN_ENCRYPTION_KEYS", "",
        "Several keys, `id:key,…`: the first seals, all open. Instead of QUEEN_ENCRYPTION_KEY.",
        check=key_list, allowed=f"id:key,id:key with each key {SIXTY_FOUR_HEX}", secret=True)

    default_subscription_mode: str = _row(QUEUES, "DEFAULT_SUBSCRIPTION_MODE", "all",
        "Where a new consumer group begins that doesn't say.", choices=("all", "new", "new-only"))
    retention_interval: int = _row(QUEUES, "RETENTION_INTERVAL", 300000,
        "Milliseconds between two rounds of retention.", least=100, effect="later")
    eviction_interval: int = _row(QUEUES, "EVICTION_INTERVAL", 60000,
        "Milliseconds between two rounds of eviction.", least=100, effect="later")

    file_buffer_dir: str = _row(SPOOL, "FILE_BUFFER_DIR", "",
        "Where pushes are kept while the database is away.", shown="`QUEENMQ_HOME/spool`", effect="later")
    file_buffer_max_mb: int = _row(SPOOL, "FILE_BUFFER_MAX_MB", 1024,
        "The most that is kept, in megabytes; 0 turns it off.", least=0, effect="later")

    sync_enabled: bool = _row(SYNC, "QUEEN_SYNC_ENABLED", True,
        "Servers tell each other of their state; on when peers are named.", effect="later")
    sync_secret: str = _row(SYNC, "QUEEN_SYNC_SECRET", "",
        "Signs every packet; the same on all servers.", check=hex_key, allowed=SIXTY_FOUR_HEX, secret=True, effect="later")
    sync_secret_previous: str = _row(SYNC, "QUEEN_SYNC_SECRET_PREVIOUS", "",
        "The secret before a change, still believed.", check=hex_key, allowed=SIXTY_FOUR_HEX, secret=True, effect="later")
    udp_peers: tuple[str, ...] = _row(SYNC, "QUEEN_UDP_PEERS", (), "The other servers, `host:port` separated by commas.", effect="later")
    sync_heartbeat_ms: int = _row(SYNC, "QUEEN_SYNC_HEARTBEAT_MS", 1000, "Between two heartbeats.", least=10, effect="later")
    sync_dead_threshold_ms: int = _row(SYNC, "QUEEN_SYNC_DEAD_THRESHOLD_MS", 5000,
        "A server silent for so long counts as dead.", least=20, effect="later")
    sync_recv_buffer_mb: int = _row(SYNC, "QUEEN_SYNC_RECV_BUFFER_MB", 8,
        "The socket's receive buffer.", least=1, most=1024, effect="later")
    sync_cache_shards: int = _row(SYNC, "QUEEN_SYNC_CACHE_SHARDS", 16, "Shards of a cache's lock.", least=1, effect="none")
    cache_partition_max: int = _row(SYNC, "QUEEN_CACHE_PARTITION_MAX", 10000,
        "The most partition ids that are remembered.", least=1, effect="later")
    cache_partition_ttl_ms: int = _row(SYNC, "QUEEN_CACHE_PARTITION_TTL_MS", 300000, "For how long each is.", least=1, effect="later")
    cache_refresh_interval_ms: int = _row(SYNC, "QUEEN_CACHE_REFRESH_INTERVAL_MS", 60000,
        "Queue options are read again from the database.", least=100, effect="later")

    pop_wait_base_interval_ms: int = _row(WAITS, "POP_WAIT_BASE_INTERVAL_MS", 100,
        "The first interval between two looks of a waiting pop.", least=1, effect="later")
    pop_wait_max_interval_ms: int = _row(WAITS, "POP_WAIT_MAX_INTERVAL_MS", 1000, "The longest.", least=1, effect="later")
    pop_wait_backoff_threshold: int = _row(WAITS, "POP_WAIT_BACKOFF_THRESHOLD", 3,
        "Empty looks before the interval grows.", least=1, effect="later")
    pop_wait_backoff_multiplier: float = _row(WAITS, "POP_WAIT_BACKOFF_MULTIPLIER", 2.0, "By how much it grows.", least=1.0, effect="later")

    coordinator_enabled: bool = _row(COORDINATOR, "QUEEN_COORDINATOR_ENABLED", False,
        "Pops are forwarded to the server that serves them best.", effect="later")
    coordinator_forward_threshold: float = _row(COORDINATOR, "QUEEN_COORDINATOR_FORWARD_THRESHOLD", 0.1,
        "Only to a peer that is better by this share.", least=0, most=1, effect="later")
    coordinator_timeout_ms: int = _row(COORDINATOR, "QUEEN_COORDINATOR_TIMEOUT_MS", 5000,
        "The most a forwarded request may take.", least=1, effect="later")
    affinity_ttl_ms: int = _row(COORDINATOR, "QUEEN_AFFINITY_TTL_MS", 300000,
        "For how long a group stays with its server.", least=1, effect="later")
    affinity_migrate_threshold: float = _row(COORDINATOR, "QUEEN_AFFINITY_MIGRATE_THRESHOLD", 0.70,
        "Load above which it may move.", least=0, most=1, effect="later")
    affinity_break_threshold: float = _row(COORDINATOR, "QUEEN_AFFINITY_BREAK_THRESHOLD", 0.90,
        "Load above which it must.", least=0, most=1, effect="later")
    affinity_migrate_min_improvement: float = _row(COORDINATOR, "QUEEN_AFFINITY_MIGRATE_MIN_IMPROVEMENT", 0.15,
        "The least gain that is worth a move.", least=0, most=1, effect="later")
    queue_affinity_threshold: int = _row(COORDINATOR, "QUEEN_QUEUE_AFFINITY_THRESHOLD", 10,
        "Above so many groups the whole queue stays together.", least=1, effect="later")

    url: str = _row(CLIENT, "QUEENMQ_URL", "",
        "The server that `queenmq push`, `pop`, `tail`, `queues` talk to; `--url` sets it too.",
        check=http_address, allowed="an address like http://127.0.0.1:6632", shown="`http://127.0.0.1:PORT`")

    # fmt: on
    sources: Mapping[str, str] = field(default_factory=dict, repr=False, compare=False)

    @property
    def database(self) -> str | None:
        """The address of the database to use; None means the embedded one."""
        if self.database_url:
            return self.database_url
        if not any(name.startswith("PG_") and source != "default" for name, source in self.sources.items()):
            return None
        secret = f":{quote(self.pg_password, safe='')}" if self.pg_password else ""
        who = f"{quote(self.pg_user, safe='')}{secret}"
        if self.pg_host.startswith("/"):
            return f"postgresql://{who}@/{quote(self.pg_db, safe='')}?host={quote(self.pg_host, safe='/')}&port={self.pg_port}"
        host = f"[{self.pg_host}]" if ":" in self.pg_host else self.pg_host
        return f"postgresql://{who}@{host}:{self.pg_port}/{quote(self.pg_db, safe='')}"

    @property
    def keys(self) -> tuple[tuple[str, bytes], ...]:
        """The encryption keys as (id, key); the first seals. Empty: payloads stay as they are."""
        if self.encryption_key:
            return (("default", bytes.fromhex(self.encryption_key)),)
        parts = [part.strip().partition(":") for part in self.encryption_keys.split(",") if part.strip()]
        return tuple((name, bytes.fromhex(key)) for name, _, key in parts)

    @property
    def server_url(self) -> str:
        """Where the command line finds the server."""
        return self.url.rstrip("/") or f"http://127.0.0.1:{self.port}"

    @property
    def spool(self) -> Path:
        """FILE_BUFFER_DIR, or its place in the home."""
        return Path(self.file_buffer_dir) if self.file_buffer_dir else self.home / "spool"

    @property
    def loopback(self) -> bool:
        """Only this machine can reach the server."""
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False


def table() -> list[Field[Any]]:
    """The settings' fields, in order."""
    return [each for each in fields(Settings) if "name" in each.metadata]


def load(environ: Mapping[str, str] | None = None, options: Mapping[str, object] | None = None) -> Settings:
    """Settings of the environment; `options` (by attribute name, None = not given) are those of the command line and win."""
    environ = os.environ if environ is None else environ
    given = {name: value for name, value in (options or {}).items() if value is not None}
    values: dict[str, Any] = {}
    sources: dict[str, str] = {}
    for each in table():
        name = each.metadata["name"]
        text = environ.get(name, "").strip()
        if each.name in given:
            values[each.name], sources[name] = _read(each, str(given[each.name]).strip()), "command line"
        elif text:
            values[each.name], sources[name] = _read(each, text), "environment"
        else:
            sources[name] = "default"
    settings = Settings(**values, sources=types.MappingProxyType(sources))
    if not settings.server_id:
        values["server_id"] = f"{socket.gethostname()}:{settings.port}"
        settings = Settings(**values, sources=settings.sources)
    _agree(settings)
    return settings


def refuse_open_host(settings: Settings, insecure: bool) -> None:
    """While there is no access control, only this machine may reach the server, unless the operator says otherwise."""
    if settings.loopback or insecure:
        return
    raise SetupError(
        f"HOST={settings.host} would let other machines in, and there is no access control yet: every one of them could read and delete. "
        "Use HOST=127.0.0.1, or say that the network is safe: --insecure"
    )


def _agree(settings: Settings) -> None:
    if settings.encryption_key and settings.encryption_keys:
        raise SetupError("QUEEN_ENCRYPTION_KEY and QUEEN_ENCRYPTION_KEYS are both set: keep one of them.")
    if settings.pop_wait_max_interval_ms < settings.pop_wait_base_interval_ms:
        raise SetupError(
            f"POP_WAIT_MAX_INTERVAL_MS={settings.pop_wait_max_interval_ms} is less than "
            f"POP_WAIT_BASE_INTERVAL_MS={settings.pop_wait_base_interval_ms}: raise the first or lower the second."
        )
    if settings.affinity_break_threshold < settings.affinity_migrate_threshold:
        raise SetupError(
            f"QUEEN_AFFINITY_BREAK_THRESHOLD={settings.affinity_break_threshold} is less than "
            f"QUEEN_AFFINITY_MIGRATE_THRESHOLD={settings.affinity_migrate_threshold}: raise the first or lower the second."
        )


@cache
def _types() -> dict[str, Any]:
    return typing.get_type_hints(Settings)


def allowed(each: Field[Any]) -> str:
    """What a setting may be, in words."""
    notes, kind = each.metadata, _types()[each.name]
    if notes["choices"]:
        return "one of " + ", ".join(notes["choices"])
    if notes["allowed"]:
        return str(notes["allowed"])
    if kind is bool:
        return "true or false"
    if kind in (int, float):
        noun = "a whole number" if kind is int else "a number"
        least, most = notes["least"], notes["most"]
        if least is not None and most is not None:
            return f"{noun} from {least:g} to {most:.16g}"
        return noun if least is None else f"{noun}, {least:g} or more"
    return {Path: "a directory", str: "text"}.get(kind, "a list, separated by commas")


def _read(each: Field[Any], text: str) -> Any:
    notes, kind = each.metadata, _types()[each.name]
    value = _parsed(kind, text)
    wrong = value is None
    if not wrong and kind in (int, float):
        wrong = not ((notes["least"] is None or value >= notes["least"]) and (notes["most"] is None or value <= notes["most"]))
    if not wrong and notes["choices"]:
        value = text.lower()
        wrong = value not in notes["choices"]
    if not wrong and notes["check"]:
        wrong = not notes["check"](text)
    if wrong:
        shown = "(not shown)" if notes["secret"] else repr(text)
        raise SetupError(f"{notes['name']} is {shown}; allowed is {allowed(each)}. Correct it, or unset it for the default.")
    return value


def _parsed(kind: Any, text: str) -> Any:
    """The value, or None when the text is not one of that kind."""
    if "\0" in text:
        return None
    if kind is bool:
        return {"true": True, "1": True, "yes": True, "on": True, "false": False, "0": False, "no": False, "off": False}.get(text.lower())
    if kind in (int, float):
        pattern = r"[+-]?\d{1,15}" if kind is int else r"[+-]?(\d{1,15}(\.\d{1,15})?|\.\d{1,15})"
        return kind(text) if re.fullmatch(pattern, text, re.ASCII) else None
    if kind is Path:
        return Path(text).expanduser().absolute()
    if kind is str:
        return text
    return tuple(part.strip() for part in text.split(",") if part.strip())


# ---------------------------------------------------------------------- showing


def masked_address(address: str) -> str:
    """An address without its password."""
    parts = urlsplit(address)
    user, password = parts.username, parts.password
    place = parts.netloc.rpartition("@")[2]
    shown = f"{user or ''}{':***' if password else ''}@{place}" if user or password else place
    query = re.sub(r"(?i)(password=)[^&]*", r"\1***", parts.query)
    return urlunsplit((parts.scheme, shown, parts.path, query, ""))


def as_text(each: Field[Any], value: object) -> str:
    """A value as a person reads it; secrets are masked."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, tuple):
        return ",".join(str(part) for part in value)
    if value and each.name == "database_url":
        return masked_address(str(value))
    return "***" if value and each.metadata["secret"] else str(value)


def default_text(each: Field[Any]) -> str:
    """The default as documentation writes it."""
    if each.metadata["shown"]:
        return str(each.metadata["shown"])
    return as_text(each, each.default) if each.default is not MISSING else ""


@dataclass(frozen=True)
class Shown:
    """One setting as `queenmq config` prints it."""

    section: str
    name: str
    value: str
    default: str
    source: str
    allowed: str
    meaning: str
    effect: Effect


def listing(settings: Settings) -> list[Shown]:
    """All settings with their values and where these come from."""
    rows = []
    for each in table():
        notes = each.metadata
        meaning = f"{notes['meaning']} {NOTES[notes['effect']]}".strip()
        value = as_text(each, getattr(settings, each.name))
        default = default_text(each).replace("`", "")
        source = settings.sources.get(notes["name"], "default")
        rows.append(Shown(notes["section"], notes["name"], value, default, source, allowed(each), meaning, notes["effect"]))
    return rows


def unknown(environ: Mapping[str, str]) -> list[str]:
    """Variables that look like ours and are none: most often a slip of the pen."""
    names = [each.metadata["name"] for each in table()]
    found = []
    for name in sorted(environ):
        if name.startswith(("QUEEN_", "QUEENMQ_", "POP_WAIT_", "FILE_BUFFER_")) and name not in names and name != "QUEENMQ_PYTHON":
            near = difflib.get_close_matches(name, names, 1)
            found.append(f"{name} is no setting" + (f"; {near[0]} is meant?" if near else ""))
    return found


def markdown() -> str:
    """docs/configuration.md."""
    lines = [
        "# Configuration",
        "",
        "Made from the table in `src/queenmq/config.py` by `./run config --markdown`; don't edit it here.",
        "",
        "Settings are environment variables. An empty one counts as unset. `./run config` prints all with their present values and where",
        "these come from, `./run config --json` for programs; secrets are masked. A bad value stops the start and says what is allowed.",
    ]
    section = ""
    for each in table():
        notes = each.metadata
        if notes["section"] != section:
            section = notes["section"]
            lines += ["", f"## {section}", "", "| Variable | Default | Allowed | Meaning |", "|---|---|---|---|"]
        default = default_text(each)
        default = default if not default or notes["shown"] else f"`{default}`"
        meaning = f"{notes['meaning']} {NOTES[notes['effect']]}".strip()
        lines.append(f"| `{notes['name']}` | {default} | {allowed(each)} | {meaning} |")
    return "\n".join(lines) + "\n"
