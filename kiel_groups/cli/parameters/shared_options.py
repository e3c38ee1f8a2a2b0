"""Options that several commands share."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, Final, TypeVar

import click

from kiel_groups.cli.parameters.name_completion import complete_topics
from kiel_groups.errors import ConfigError

FC = TypeVar("FC", bound=Callable[..., Any] | click.Command)

__all__ = [
    "BROKERS",
    "SERVER_WAIT_S",
    "SHARED",
    "ZOOKEEPER",
    "brokers_option",
    "coordination_option",
    "optional_brokers_option",
    "zookeeper_option",
    "optional_zookeeper_option",
    "json_option",
    "json_lines_option",
    "verbose_option",
    "confirm",
    "quiet_option",
    "yes_option",
    "key_separator_option",
    "separator_bytes",
    "topic_argument",
]

#: How long a command waits for ZooKeeper's first answer, or for one of a broker, in seconds: a person is waiting.
SERVER_WAIT_S: Final = 5.0

#: Settings of all commands: ``KIEL_GROUPS_<NAME>`` in the environment, a key at the top of the file.
SHARED: Final = ("brokers", "zookeeper", "coordination")

#: The names of what coordinates a group.
BROKERS, ZOOKEEPER = "brokers", "zookeeper"


def _brokers_option(*, required: bool) -> Callable[[FC], FC]:
    return click.option(
        "--brokers",
        required=required,
        envvar="KIEL_GROUPS_BROKERS",
        show_envvar=True,
        metavar="HOST:PORT",
        help="One or more brokers, separated by commas.",
    )


brokers_option = _brokers_option(required=True)

#: For commands that need brokers only if these coordinate the groups.
optional_brokers_option = _brokers_option(required=False)


def coordination_option(help_text: str, **settings: Any) -> Callable[[FC], FC]:
    """Return the option that says what coordinates groups; ``settings`` are further ones of ``click.option``."""
    return click.option(
        "--coordination",
        type=click.Choice([ZOOKEEPER, BROKERS]),
        default=ZOOKEEPER,
        show_default=True,
        envvar="KIEL_GROUPS_COORDINATION",
        show_envvar=True,
        help=help_text,
        **settings,
    )


def _checked(context: click.Context, parameter: click.Parameter, hosts: str | None) -> str | None:
    """Reject a wrong address before the command starts, with an error that names the option."""
    from kiel_groups.config import ZooKeeperConfig

    try:
        if hosts is not None:
            ZooKeeperConfig.parse(hosts)
    except ConfigError as error:
        text = str(error).removeprefix("zk_hosts: ")
        raise click.BadParameter(text, context, parameter, param_hint="'--zookeeper'") from None
    return hosts


def _zookeeper_option(*, required: bool) -> Callable[[FC], FC]:
    return click.option(
        "--zookeeper",
        required=required,
        callback=_checked,
        envvar="KIEL_GROUPS_ZOOKEEPER",
        show_envvar=True,
        metavar="HOST:PORT",
        help="ZooKeeper's servers; a chroot after the last: z:2181/x.",
    )


zookeeper_option = _zookeeper_option(required=True)

#: For commands that also work without ZooKeeper.
optional_zookeeper_option = _zookeeper_option(required=False)

json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON, for programs.")

#: For commands that print one object after the other.
json_lines_option = click.option("--json", "as_json", is_flag=True, help="Print JSON, one object per line.")

verbose_option = click.option(
    "-v", "--verbose", is_flag=True, help="Also print informational messages, on standard error."
)

yes_option = click.option("--yes", is_flag=True, help="Do not ask for confirmation.")


def confirm(question: str) -> None:
    """
    Ask at the terminal.

    Raises:
        click.UsageError: There is no terminal.
        click.Abort: The answer is no.
    """
    if sys.stdin is None or not sys.stdin.isatty():
        raise click.UsageError("there is no terminal to confirm at; give --yes.", click.get_current_context())
    click.confirm(question, abort=True, err=True)


quiet_option = click.option("-q", "--quiet", is_flag=True, help="Report errors only, no summary or progress.")

topic_argument = click.argument("topic", shell_complete=complete_topics)

key_separator_option = click.option(
    "--key-separator", metavar="TEXT", help=r"Text between the key and the value of a line; \t is a tab."
)


def separator_bytes(given: str | None) -> bytes | None:
    r"""Return the separator as bytes, with ``\t`` replaced by a tab, or None for None. Raise ConfigError if empty."""
    if given == "":
        raise ConfigError("--key-separator: nothing given; expected at least one character")
    return None if given is None else given.replace("\\t", "\t").encode()
