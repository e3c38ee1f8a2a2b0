"""Replace the names of settings in a message by the options of the present command."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

import click

#: The parameters of commands by the names of the same settings in the Python interface, or of the same fields of the
#: requests to the service, where these differ.
_PARAMETERS: Final = {
    "zk_hosts": "zookeeper",
    "partition_allocator": "allocator",
    "auto_offset_reset": "start",
    "required_acks": "acks",
    "servers": "zookeepers",
    "group": "groups",
    "topics": "selection",
    "partitions": "grown",
    "shift": "shift_by",
    "time": "to_datetime",
    "ago": "by_duration",
}


def with_options(text: str, command: click.Command) -> str:
    """
    Return a message in the words of a command, such as ``--session-timeout-ms: 5 given`` or ``--coordination brokers``.

    Names of settings for which the command has no option stay as they are. So do names in quotes, in calls, and as
    parts of other words.

    Args:
        text: A message, such as the text of a ``ConfigError``, which begins with the name of the setting.
        command: The command that the user has called.
    """
    options = {each.name: _longest(each) for each in command.params if isinstance(each, click.Option) and each.name}
    options |= {name: options[parameter] for name, parameter in _PARAMETERS.items() if parameter in options}
    if not options:
        return text
    names = "|".join(sorted(options, key=len, reverse=True))
    # A name of one word is an ordinary word, unless a value or the rest of the message follows it.
    text = re.sub(rf"""(?<![\w'"(-])({names})=(['"])([\w.-]+)\2""", lambda found: _given(found, options), text)
    text = re.sub(rf"^({names})(?=: )", lambda found: options[found[1]], text)
    compound = "|".join(name for name in names.split("|") if "_" in name)
    if not compound:
        return text
    return re.sub(rf"""(?<![\w'"(-])({compound})(?![\w'"(-])""", lambda found: options[found[1]], text)


def _longest(option: click.Option) -> str:
    return max(option.opts, key=len)


def _given(found: re.Match[str], options: Mapping[str, str]) -> str:
    return f"{options[found[1]]} {found[3]}"
