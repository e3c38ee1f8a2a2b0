"""Define the command group, find the command of a call, and print its errors as lines without a traceback."""

from __future__ import annotations

import codecs
import os
import re
import shlex
import sys
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from functools import partial
from importlib import import_module
from io import TextIOWrapper
from itertools import zip_longest
from traceback import extract_tb
from typing import Final

import click

from kiel_groups import __version__
from kiel_groups.cli.parameters.option_words import with_options
from kiel_groups.cli.parameters.options import config_option, name_variables, source_of
from kiel_groups.cli.terminal.messages import DONE, EPILOG, FAILED, INTERRUPTED, READER_GONE, WRONG, Lines
from kiel_groups.errors import BadRecordError, ChrootMissingError, ConfigError, KielGroupsError, UnknownTopicError
from kiel_groups.wording import own_command

NAME = "kiel-groups"
#: The variable by which click's generated scripts ask for completion.
COMPLETION_VARIABLE = "_KIEL_GROUPS_COMPLETE"

#: Errors that the caller can fix; a missing chroot is one, because it is part of an address that the caller gave.
_USER_ERRORS = (ConfigError, ChrootMissingError)

#: The commands and their help lines, by the sections of the help. So the help imports no command. A command is in the
#: module of its name in ``cli.commands``, unless ``_SHARED_MODULES`` names another module.
SECTIONS = {
    "Look at groups": {
        "groups": "List and delete the groups of a cluster.",
        "describe": "Show a group: its problems, members, owners and lag.",
        "members": "List the members of a group, one line each.",
        "lag": "Show how far groups are behind, and whether that grows.",
        "verify": "Check that a group works; exit with 1 if not.",
        "doctor": "Check servers and groups: reachable, sound, of one cluster.",
        "history": "Show the plans of a group: when, why, and what moved.",
        "plan": "Show what a leader would plan after a change; make none.",
    },
    "Act on groups": {
        "offsets": "Show, reset, export, import, copy and delete offsets.",
        "config": "Show and change the settings of a running group.",
        "acl": "Show and set the ACLs of a group's znodes in ZooKeeper.",
        "weights": "Show and set the weights of partitions, for fair shares.",
        "drain": "Give the partitions of a member or a host to others.",
        "undrain": "Let a drained member or host own partitions again.",
        "rebalance": "Have the leader of a group make a new plan now.",
        "release": "Take partitions from a member that does not release them.",
    },
    "Topics and records": {
        "topics": "List, create, describe, configure, grow and delete topics.",
        "produce": "Send lines as records.",
        "consume": "Print records, as a member of a group or alone.",
    },
    "Run processes": {
        "serve": "Show groups in a browser, as metrics and by a webhook; lead groups.",
        "workers": "Run and show workers, which share connectors.",
        "connectors": "List, create and change the connectors of workers.",
        "connector-plugins": "List the connectors that are installed at a worker.",
        "mirror": "Copy topics to another cluster; show and verify the copies.",
        "spark": "Run jobs on Spark: copy topics into Parquet, and verify the copies.",
    },
    "Begin": {
        "cluster": "Run a real Kafka and ZooKeeper on this machine.",
        "demo": "Watch a group lose a member to kill -9, but no record.",
        "completion": "Print a completion script for a shell.",
    },
}

_COMMANDS = {name: help_line for section in SECTIONS.values() for name, help_line in section.items()}

#: Words from kafka-consumer-groups, kafka-topics and zkCli, and the command for each word.
_MEANT = {
    "reset": "offsets reset",
    "reset-offsets": "offsets reset",
    "rewind": "offsets reset",
    "seek": "offsets reset",
    "skip": "offsets reset",
    "export": "offsets export",
    "import": "offsets import",
    "delete-offsets": "offsets delete",
    "delete": "groups delete",
    "deleteall": "groups delete",
    "remove": "groups delete",
    "rm": "groups delete",
    "rmr": "groups delete",
    "list": "groups list",
    "ls": "groups list",
    "info": "describe",
    "show": "describe",
    "state": "describe",
    "status": "describe",
    "check": "doctor",
    "get": "config show",
    "set": "config set",
    "move": "drain",
    "evict": "release",
    "kick": "release",
    "create": "topics create",
    "alter": "topics grow",
    "pause": "connectors pause",
    "resume": "connectors resume",
    "start": "cluster up",
    "stop": "cluster down",
}

#: How similar a word must be to one of these words, or to ``release``, to count as a typing error. ``release`` needs
#: more care than other commands, because it acts on live members.
_TYPING_ERROR: Final = 0.8

#: The modules of commands that share one.
_SHARED_MODULES = {"connector-plugins": "connectors", "rebalance": "drain", "undrain": "drain"}


class _LazyGroup(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return None
        module = _SHARED_MODULES.get(cmd_name, cmd_name)
        command = getattr(import_module(f"kiel_groups.cli.commands.{module}"), cmd_name.replace("-", "_"))
        assert isinstance(command, click.Command)
        name_variables(command, cmd_name)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if name not in _COMMANDS and not name.startswith("-") and not ctx.resilient_parsing:
            meant = _command_meant(name)
            raise click.UsageError(f"No such command '{name}'." + (f" Did you mean '{meant}'?" if meant else ""), ctx)
        return super().resolve_command(ctx, args)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        known = {name for parameter in self.get_params(ctx) for name in parameter.opts}
        if args and args[0].startswith("--") and args[0] not in known and not ctx.resilient_parsing:
            # kafka-consumer-groups names its commands by options, such as --describe.
            name = args[0].removeprefix("--")
            meant = _MEANT.get(name, name)
            if meant.partition(" ")[0] in _COMMANDS:
                raise click.UsageError(f"No such option '{args[0]}'. Did you mean '{meant}'?", ctx)
        return super().parse_args(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        widest = max(map(len, _COMMANDS))
        for title, commands in SECTIONS.items():
            with formatter.section(title):
                formatter.write_dl([(name.ljust(widest), help_line) for name, help_line in commands.items()])


def _command_meant(word: str) -> str:
    """Return the command to suggest for an unknown command of a user, or "" if no command is similar enough."""
    near = get_close_matches(word, [*_COMMANDS, *_MEANT], 1)
    if near and (near[0] in _MEANT or near == ["release"]):
        near = get_close_matches(word, near, 1, _TYPING_ERROR)
    meant = _MEANT.get(near[0], near[0]) if near else ""
    return meant if meant.partition(" ")[0] in _COMMANDS else ""


@click.group(
    cls=_LazyGroup,
    invoke_without_command=True,
    epilog=EPILOG,
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.version_option(__version__, prog_name=NAME, message="%(prog)s %(version)s")
@config_option
@click.pass_context
def app(context: click.Context) -> int:
    """
    Work with consumer groups of Kafka 0.8 to 3.9, which ZooKeeper coordinates or, from Kafka 0.9 on, brokers.

    'kiel-groups COMMAND --help' explains a command. Each option can also be set in the environment, as
    KIEL_GROUPS_ZOOKEEPER or KIEL_GROUPS_LAG_CHECK, or in the file of --config.
    """
    if context.invoked_subcommand is None:
        click.echo(context.get_help(), err=True)
        return WRONG
    return DONE


#: The options that name the cluster, the worker or the file of defaults. Environment variables need no mention: they
#: stay set.
_PLACES: Final = (
    "--config",
    "--coordination",
    "--zookeeper",
    "--security",
    "--brokers",
    "--url",
    "--token-file",
)
#: A command in a text: its words, which may have parts in quotes.
_OWN_COMMAND: Final = re.compile(rf"""'{NAME}((?: (?:'[^']*'(?:"'"'[^']*')*|[^' ]+))+)'""")


def pasteable(text: str, given: Sequence[str]) -> str:
    """
    Return a text with complete commands, so that the user can paste them into a shell.

    A quoted command in the text, such as ``'kiel-groups describe g'``, gets the options of the present call that name
    the cluster or the worker.

    Args:
        text: A message, an error or a remedy.
        given: The arguments of the present call.
    """
    words = zip_longest(given, given[1:], fillvalue="")
    pairs = [
        (name, joined if equals else following)
        for word, following in words
        for name, equals, joined in [word.partition("=")]
    ]
    options = {name: value for name, value in pairs if name in _PLACES}
    if next((word for word in given if word in _COMMANDS), "") == "serve":
        # Its own token is for its clients. The commands in a text ask workers, whose token has another option there.
        options.pop("--token-file", None)
        if token := dict(pairs).get("--worker-token-file"):
            options["--token-file"] = token
    if not options or NAME not in text:
        return text
    return _OWN_COMMAND.sub(lambda found: _completed(found, options), text)


def _completed(found: re.Match[str], options: Mapping[str, str]) -> str:
    """
    Return a command that a text names, with those of the user's ``options`` that are among ``_PLACES``.

    Options that the command does not accept, or already has, are left out. A command that is unknown, or that asks for
    help, is returned unchanged.
    """
    words = shlex.split(found[1])
    command: click.Command | None = app
    context = click.Context(app)
    for word in words:
        if isinstance(command, click.Group):
            command = command.get_command(context, word)
    if command is None or "--help" in words:
        return found[0]
    known = {name: parameter.required for parameter in command.params for name in parameter.opts if name not in words}
    by_brokers = "brokers" in words or options.get("--coordination") == "brokers"
    refused = "--zookeeper" if by_brokers else "--brokers"
    if not known.get(refused):  # A command to which the servers of the other coordination mean nothing refuses them.
        known.pop(refused, None)
    added = [word for name in _PLACES[1:] if name in options and name in known for word in (name, options[name])]
    before = ["--config", options["--config"]] if "--config" in options else []
    return own_command(*before, *words, *added)


def _in_words_of(arguments: Sequence[str], text: str) -> str:
    """Return a message in the words of the present call: its command's options, and commands that can be pasted."""
    command: click.Command = app
    context = click.Context(app)
    for word in arguments:
        if isinstance(command, click.Group):
            command = command.get_command(context, word) or command
    if command is not app and isinstance(command, click.Group):
        command = command.get_command(context, "list") or command  # as 'groups' without a command
    return pasteable(with_options(text, command), arguments)


def run(arguments: Sequence[str]) -> int:
    """
    Run a command. Print an error of the package, of click or of the system as one line on standard error.

    Returns:
        The exit status.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors=_PRINTABLE)
    lines = Lines(partial(_in_words_of, arguments))
    try:
        status = _invoke(arguments, lines)
        if sys.stdout is not None:
            sys.stdout.flush()
    except click.exceptions.Exit as leaving:
        return leaving.exit_code
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message(), err=True)
        return error.exit_code
    except click.ClickException as error:
        lines.say("error", _text(error))
        return error.exit_code
    except UnknownTopicError as error:
        lines.say("error", f"{error}; '{NAME} topics list' shows the existing topics, 'topics create' creates one")
        return WRONG
    except BadRecordError as error:
        _finish_output()
        lines.say("error", f"{error}; a member of a group does so with '--on-bad-record skip'")
        return FAILED
    except KielGroupsError as error:
        _finish_output()
        lines.say("error", str(error))
        return WRONG if isinstance(error, _USER_ERRORS) else FAILED
    except BrokenPipeError:
        _forget_output()
        return READER_GONE
    except OSError as error:
        # Such as a full disk when printing help; commands report the errors of their own files and output.
        text = f"standard output cannot be written: {error.strerror}" if _is_output_error(error) else str(error)
        _forget_output()
        lines.say("error", text)
        return FAILED
    except (KeyboardInterrupt, click.Abort):
        return INTERRUPTED
    return status


#: The name by which streams find ``_printable``.
_PRINTABLE: Final = "kiel_groups.printable"

#: What our texts and tables have beyond ASCII, for terminals whose encoding, such as latin-1, lacks it.
_PLAIN_CHARACTERS: Final = {"─": "-", "━": "-", "→": "->", "…": "...", "−": "-", "–": "-", "≥": ">=", "·": "-"}


def _printable(error: UnicodeError) -> tuple[str | bytes, int]:
    """
    Replace a character that the encoding of a stream lacks. This is an error handler of ``codecs``.

    A character of the package's own texts becomes a plainer character, and any other character becomes its escape code.
    A byte of an argument that is not text becomes that byte again.
    """
    assert isinstance(error, UnicodeEncodeError)
    character = error.object[error.start]
    if "\udc80" <= character <= "\udcff":
        # Python has decoded a byte of an argument or a path to this code, because the byte is not text.
        return bytes([ord(character) - 0xDC00]), error.start + 1
    plain = _PLAIN_CHARACTERS.get(character) or character.encode("ascii", "backslashreplace").decode()
    return plain, error.start + 1


codecs.register_error(_PRINTABLE, _printable)


def _invoke(arguments: Sequence[str], lines: Lines) -> int:
    if instruction := os.environ.get(COMPLETION_VARIABLE):
        from click.shell_completion import shell_complete

        return shell_complete(app, {}, NAME, COMPLETION_VARIABLE, instruction)
    with app.make_context(NAME, list(arguments), obj=lines) as context:
        status = app.invoke(context)
    return status if isinstance(status, int) else DONE


def _is_output_error(error: OSError) -> bool:
    """
    Return whether writing standard output raised the error.

    Such an error names no file, so the function that raised it decides.
    """
    return extract_tb(error.__traceback__)[-1].name in {"echo", "run"}


def _finish_output() -> None:
    """Flush standard output. If that fails, discard the rest, because the flush at exit would fail, too."""
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
    except OSError:
        _forget_output()


def _forget_output() -> None:
    """Discard buffered and later output, so that the interpreter's flush at exit does not fail."""
    if sys.stdout is None:
        return
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)


#: Technical terms in click's messages, and plainer words for them.
_PLAIN_WORDS: Final = {
    "is not a valid integer range": "is not an integer",
    "is not a valid float range": "is not a number",
    "requires an argument": "needs a value",
}


#: Options of Kafka's tools that commands spell otherwise: the names, or the texts in the help, of the parameters that
#: they have instead, and a hint.
_KAFKA_OPTIONS: Final = {
    "--group": ({"group", "groups", "names"}, "The group is an argument: give its name without '--group'."),
    "--topic": (
        {"topic", "TOPIC", "TOPIC...", "[TOPIC]..."},
        "The topic is an argument: give its name without '--topic'.",
    ),
    "--from-beginning": ({"WHERE"}, "Give '--from earliest' instead."),
    "--execute": (
        {"yes"},
        "Give '--yes' instead; without it, the command asks before it makes the change. '--dry-run' only shows the"
        " change, which is the default of Kafka's tool.",
    ),
    "--bootstrap-server": ({"brokers"}, "Give '--coordination brokers --brokers HOST:PORT'."),
}


#: The options that 'cluster env' sets. A new shell lacks them.
_SERVERS: Final = ("brokers", "zookeeper")


def _text(error: click.ClickException) -> str:
    """
    Return the message of click's error in plainer words.

    For wrong usage, the text also names the variable or file with the wrong value, and the command that prints help.
    """
    text = error.format_message()
    for words, plainer in _PLAIN_WORDS.items():
        text = text.replace(words, plainer)
    text += "" if text.endswith((".", "?", "!")) else "."
    if not isinstance(error, click.UsageError) or error.ctx is None:
        return text
    if isinstance(error, click.NoSuchOption):
        names, hint = _KAFKA_OPTIONS.get(error.option_name, (set(), ""))
        known = {name for each in error.ctx.command.params for name in (each.name, each.metavar)}
        text += f" {hint}" if names & known else ""
    parameter = error.param if isinstance(error, click.BadParameter) else None
    source = source_of(error.ctx, parameter) if parameter is not None else None
    if isinstance(error, click.MissingParameter) and parameter is not None and parameter.name in _SERVERS:
        text += f""" After '{NAME} cluster up', eval "$({NAME} cluster env)" sets it."""
    return f"{text}{f' It is set in {source}.' if source else ''} See '{error.ctx.command_path} --help'."
