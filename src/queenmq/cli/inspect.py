"""`config` and `doctor`: the settings, and whether this machine and the database will do.

Never changes anything but to make and remove one small file where the data is to lie. Secrets are masked.
"""

from __future__ import annotations

import asyncio
import os
import platform
import shutil
import sys
import tempfile
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass
from typing import Literal

import click

from queenmq import config
from queenmq.cli.output import console, emit, json_option
from queenmq.config import Settings
from queenmq.errors import SetupError

LEAST_FREE_MB = 1024
State = Literal["pass", "warn", "fail"]


@click.command(name="config")
@click.option("--markdown", is_flag=True, help="Print docs/configuration.md.")
@click.option("--data", metavar="DIR", help="As if started with it.")
@json_option
def config_command(markdown: bool, data: str | None, as_json: bool) -> int:
    """Show every setting: value, default, where it comes from, meaning."""
    if markdown:
        click.echo(config.markdown(), nl=False)
        return 0
    rows = config.listing(config.load(options={"home": data}))
    strangers = config.unknown(os.environ)
    if as_json:
        emit({"settings": [asdict(row) for row in rows], "unknown": strangers})
        return 0
    _print_settings(rows)
    for text in strangers:
        click.echo(f"queenmq: {text}", err=True)
    return 0


def _print_settings(rows: list[config.Shown]) -> None:
    from rich.markup import escape

    out = console()
    section = ""
    for row in rows:
        if row.section != section:
            section = row.section
            out.print(f"\n[bold]{section}[/bold]")
        value = escape(row.value) if row.value else "[dim](none)[/dim]"
        mark = "" if row.source == "default" else f" [green]({row.source})[/green]"
        default = "" if row.source == "default" else f" Default: {escape(row.default or '(none)')}."
        out.print(f"  [cyan]{row.name}[/cyan] = {value}{mark}")
        out.print(f"      {escape(row.meaning)}{default}")


@dataclass(frozen=True)
class Finding:
    """One line of the doctor."""

    check: str
    state: State
    text: str


@click.command()
@click.option("--data", metavar="DIR", help="As if started with it.")
@json_option
def doctor(data: str | None, as_json: bool) -> int:
    """Check Python, settings, disk, port and database; exit code 1 when something would keep the server from working."""
    findings = asyncio.run(_examine(data))
    failed = any(finding.state == "fail" for finding in findings)
    if as_json:
        emit({"healthy": not failed, "findings": [asdict(finding) for finding in findings]})
    else:
        from rich.markup import escape

        marks = {"pass": "[green]pass[/green]", "warn": "[yellow]warn[/yellow]", "fail": "[red]FAIL[/red]"}
        for finding in findings:
            console().print(f"{marks[finding.state]}  {finding.check:<9} {escape(finding.text)}")
    return 1 if failed else 0


async def _examine(data: str | None) -> list[Finding]:
    version = platform.python_version()
    found = [Finding("python", "pass" if sys.version_info >= (3, 11) else "fail", f"{version} ({sys.executable})")]
    try:
        settings = config.load(options={"home": data})
    except SetupError as error:
        return [*found, Finding("settings", "fail", str(error))]
    changed = [name for name, source in settings.sources.items() if source != "default"]
    strangers = config.unknown(os.environ)
    text = "; ".join(strangers) or (f"set: {', '.join(changed)}" if changed else "all at their defaults")
    found.append(Finding("settings", "warn" if strangers else "pass", text))
    checks: list[tuple[str, Callable[[Settings], Awaitable[list[Finding]]]]] = [
        ("disk", _disk),
        ("port", _port),
        ("database", _database),
    ]
    for name, check in checks:
        try:
            found += await check(settings)
        except SetupError as error:
            found.append(Finding(name, "fail", str(error)))
    return found


async def _disk(settings: Settings) -> list[Finding]:
    there = settings.home
    while not there.exists():
        there = there.parent
    try:
        with tempfile.TemporaryFile(dir=there) as probe:
            probe.write(b"queenmq")
    except OSError as error:
        return [Finding("disk", "fail", f"{there} can't be written to ({error.strerror}): choose another with --data DIR or QUEENMQ_HOME.")]
    free = shutil.disk_usage(there).free // 2**20
    text = f"{free:,} MB free for {settings.home}"
    return [
        Finding("disk", "pass", text) if free >= LEAST_FREE_MB else Finding("disk", "warn", f"only {text}; {LEAST_FREE_MB:,} are wise.")
    ]


async def _port(settings: Settings) -> list[Finding]:
    from queenmq.cli.supervisor import refuse_taken_port

    where = f"{settings.host}:{settings.port}"
    if not settings.loopback:
        return [Finding("port", "warn", f"{where} lets other machines in; there is no access control, so it needs --insecure.")]
    if await _answers(settings):
        return [Finding("port", "pass", f"a QueenMQ server answers on {where}")]
    refuse_taken_port(settings)
    return [Finding("port", "pass", f"{where} is free")]


async def _answers(settings: Settings) -> bool:
    import httpx

    try:
        async with httpx.AsyncClient(timeout=2, trust_env=False) as client:
            return (await client.get(f"http://{settings.host}:{settings.port}/livez")).status_code == 200
    except httpx.HTTPError:
        return False


async def _database(settings: Settings) -> list[Finding]:
    from queenmq.postgres.binaries import account_for, binaries_for
    from queenmq.postgres.embedded import EmbeddedPostgres
    from queenmq.postgres.preflight import facts, place, refuse_unfit

    dsn = settings.database
    if dsn is None:
        dsn = EmbeddedPostgres.running_dsn(settings.home)
    if dsn is None:
        account = account_for(settings.home / "postgres")
        binaries_for(account, settings.home, dry=True)
        made = (settings.home / "postgres" / "PG_VERSION").exists()
        state = "there and stopped" if made else "made at the first start"
        return [Finding("database", "pass", f"embedded PostgreSQL 18 as user {account.name}, its data {state}")]
    found = await facts(dsn)
    refuse_unfit(found, dsn)
    lines = [Finding("database", "pass", f"PostgreSQL {found.version} at {place(dsn)} as {found.role}")]
    if found.durable:
        lines.append(Finding("durable", "pass", "fsync and full_page_writes are on"))
    else:
        off = [name for name, on in (("fsync", found.fsync), ("full_page_writes", found.full_page_writes)) if not on]
        lines.append(
            Finding("durable", "fail", f"{' and '.join(off)} off: a power cut loses acknowledged messages. Turn it on in its settings.")
        )
    lines.append(await _schema(dsn) if found.has_schema else Finding("schema", "pass", "made at the first start"))
    if found.max_connections < settings.db_pool_size + 5:
        text = f"max_connections is {found.max_connections}, DB_POOL_SIZE {settings.db_pool_size}: raise the first or lower the second."
        lines.append(Finding("pool", "warn", text))
    return lines


async def _schema(dsn: str) -> Finding:
    """Is the database's schema this version's, an older one (the next start renews it), or somebody else's?"""
    import asyncpg

    from queenmq.postgres.migrate import scripts, statement
    from queenmq.postgres.preflight import connect

    connection = await connect(dsn)
    try:
        known = {row["name"]: row["digest"] for row in await connection.fetch(statement("migrate_known"))}
    except asyncpg.UndefinedTableError:
        return Finding("schema", "warn", "the schema `queen` is not ours yet: the next start takes over an older system's, or says why not")
    except asyncpg.InsufficientPrivilegeError as error:
        return Finding("schema", "fail", f"this role may not read the schema: {error.args[0]}. Connect as its owner.")
    finally:
        await connection.close()
    migrations = scripts("migrations")
    missing = [script.name for script in migrations if script.name not in known]
    stale = [script.name for script in scripts("functions") if known.get(script.name) != script.digest]
    if missing or stale:
        text = f"{len(missing)} migrations and {len(stale)} functions are older than this version; the next start renews them"
        return Finding("schema", "warn", text)
    return Finding("schema", "pass", f"at {migrations[-1].name.removesuffix('.sql')}, every function as in this version")
