"""The group of commands, and what an error looks like to a person: one line, never a traceback for a user's mistake."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module

import click

from kiel_groups import __version__
from kiel_groups.errors import ConfigError, KielGroupsError

__all__ = ["app", "run"]

FAILED, WRONG, INTERRUPTED = 1, 2, 130

#: Command → module and attribute, with the line of help that must not cost an import.
_COMMANDS = {
    "demo": ("kiel_groups.cli.demo", "demo", "Watch a group lose a member to kill -9, and no record."),
}


class _LazyGroup(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return None
        module, attribute, _ = _COMMANDS[cmd_name]
        command = getattr(import_module(module), attribute)
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, line) for name, (_, _, line) in _COMMANDS.items()])


@click.command(cls=_LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="kiel-groups", message="%(prog)s %(version)s")
def app() -> None:
    """Consumer groups for Kafka 0.8.x, on ZooKeeper."""


def run(arguments: Sequence[str]) -> int:
    """
    Run a command; every error of the package becomes a line on standard error.

    Returns:
        The exit status.
    """
    try:
        status = app.main(list(arguments), prog_name="kiel-groups", standalone_mode=False)
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except KielGroupsError as error:
        click.echo(f"error: {error}", err=True)
        return WRONG if isinstance(error, ConfigError) else FAILED
    except (KeyboardInterrupt, click.Abort):
        return INTERRUPTED
    return status if isinstance(status, int) else 0
