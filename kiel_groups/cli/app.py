"""The group of commands, and what an error looks like to a person: one line, never a traceback for a user's mistake."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module

import click

from kiel_groups import __version__
from kiel_groups.cli.lines import Lines
from kiel_groups.errors import ConfigError, KielGroupsError

__all__ = ["app", "run"]

FAILED, WRONG, INTERRUPTED = 1, 2, 130

#: Command → module and attribute, with the line of help that must not cost an import.
_COMMANDS = {
    "consume": ("kiel_groups.cli.consume", "consume", "Print topics as a member of a group."),
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


@click.group(cls=_LazyGroup, invoke_without_command=True, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="kiel-groups", message="%(prog)s %(version)s")
@click.pass_context
def app(context: click.Context) -> int:
    """Consumer groups for Kafka 0.8.x, on ZooKeeper."""
    if context.invoked_subcommand is None:
        click.echo(context.get_help(), err=True)
        return WRONG
    return 0


def run(arguments: Sequence[str]) -> int:
    """
    Run a command; every error of the package becomes a line on standard error.

    Returns:
        The exit status.
    """
    lines = Lines()
    try:
        status = app.main(list(arguments), prog_name="kiel-groups", standalone_mode=False, obj=lines)
    except click.ClickException as error:
        lines.say("error", _told(error))
        return error.exit_code
    except KielGroupsError as error:
        lines.say("error", str(error))
        return WRONG if isinstance(error, ConfigError) else FAILED
    except (KeyboardInterrupt, click.Abort):
        return INTERRUPTED
    return status if isinstance(status, int) else 0


def _told(error: click.ClickException) -> str:
    """What click found wrong, and who knows what is right."""
    context = error.ctx if isinstance(error, click.UsageError) else None
    return error.format_message() + (f" See '{context.command_path} --help'." if context is not None else "")
