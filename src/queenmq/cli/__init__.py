"""The command line: `queenmq COMMAND`. Alone it is `queenmq up`.

Never shows a traceback for what a person can mend. A command's module is imported when it is called, so that every start is fast.
Exit codes: 0 done · 1 failed, the reason on standard error · 2 wrong usage · 3 there was nothing (pop) · 130 interrupted.
"""

from __future__ import annotations

import errno
import importlib
import sys
from collections.abc import Sequence

import click

import queenmq
from queenmq.errors import QueenError

COMMANDS = {
    "up": ("queenmq.cli.serve", "Start the server (with its embedded PostgreSQL when no other is named)."),
    "demo": ("queenmq.cli.demo", "Push, pop and ack some messages and show it."),
    "push": ("queenmq.cli.messages", "Store messages in a queue."),
    "pop": ("queenmq.cli.messages", "Take messages from a queue."),
    "tail": ("queenmq.cli.messages", "Follow a queue as messages arrive."),
    "queues": ("queenmq.cli.database", "List the queues with what waits in them."),
    "config": ("queenmq.cli.inspect", "Show every setting: value, default, source, meaning."),
    "doctor": ("queenmq.cli.inspect", "Check this machine, the settings and the database."),
    "resync": ("queenmq.cli.schema", "Recompute what is derived from the messages and say what was wrong."),
    "migrate": ("queenmq.cli.schema", "Bring the database's schema up to date without serving."),
    "bench": ("queenmq.cli.bench", "Measure a running server: push, pop, ack."),
}
EXIT_NOTHING = 3


class _Commands(click.Group):
    """Knows all names, imports a module only for its command; the help needs none of them."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module = importlib.import_module(COMMANDS[cmd_name][0])
        found = getattr(module, f"{cmd_name}_command", None) or getattr(module, cmd_name)
        assert isinstance(found, click.Command)
        return found

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, help_text) for name, (_, help_text) in COMMANDS.items()])

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        # alone, or with options of `up` only, it serves
        if not args or (args[0].startswith("-") and args[0] not in ("--help", "-h", "--version")):
            args = ["up", *args]
        return super().parse_args(ctx, args)


@click.command(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(queenmq.__version__, prog_name="queenmq")
def queenmq_command() -> None:
    """QueenMQ: durable partitioned queues on PostgreSQL. Without a command it starts the server (`up`)."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command and gives its exit code."""
    try:
        code = queenmq_command.main(args=list(arguments) if arguments is not None else None, prog_name="queenmq", standalone_mode=False)
        sys.stdout.flush()
        return code if isinstance(code, int) else 0
    except click.exceptions.Exit as ended:
        return ended.exit_code
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except (click.Abort, KeyboardInterrupt):
        return 130
    except QueenError as error:
        return _failed(str(error))
    except BrokenPipeError:
        # the reader of a pipe went away: nothing to say, and no noise when the interpreter closes standard output
        sys.stdout = None
        return 1
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            return _failed(f"the disk is full ({error.filename or 'writing'}): free some space and try again.")
        if error.errno in (errno.EACCES, errno.EROFS, errno.EPERM) and error.filename:
            return _failed(f"{error.filename} can't be used ({error.strerror}): choose another directory with --data DIR.")
        raise
    except Exception as error:
        from queenmq.client.errors import QueenClientError

        if isinstance(error, QueenClientError):
            return _failed(str(error))
        raise


def _failed(text: str) -> int:
    click.echo(f"queenmq: {text}", err=True)
    return 1
