"""
Write ``docs/settings.rst`` from the signatures and docstrings of the consumers and the producer.

Run ``python -m tests.helpers.settings_page > docs/settings.rst`` after a change of a setting.
"""

from __future__ import annotations

import inspect
import re
import sys
import textwrap
from collections.abc import Iterator
from typing import Any

from kiel_groups.clients import GroupedConsumer, Producer, SingleConsumer
from kiel_groups.config import BrokerConfig

__all__ = ["settings_page"]

_WIDTH = 120
#: ``brokers`` of the clients is the former, and the latter is a section of its own.
_LEFT_OUT = ("hosts", "broker_settings")

_HEAD = """\
Settings of consumers and producers
===================================

The arguments of the constructors, with their defaults. Times whose names end in ``_ms`` are in milliseconds. An unknown
name is an error that names the nearest one. ``kiel_groups.sync`` has the same settings; the settings of connectors are
in ``connectors.rst``, those of a Spark query in ``spark.rst``.
"""


def settings_page() -> str:
    """Return the whole page."""
    shared = [f"``{name}``" for name in _described(SingleConsumer, "Args") if name != "broker_settings"]
    chapters = [
        ("``GroupedConsumer``", GroupedConsumer, "Args", "The settings of a member of a consumer group."),
        ("``Producer``", Producer, "Args", "The settings of a producer."),
        ("Connections to brokers", BrokerConfig, "Attributes", "All clients also have these settings."),
    ]
    lines = [_HEAD, *_wrapped(f"``SingleConsumer`` has these of ``GroupedConsumer``: {', '.join(shared)}."), ""]
    for title, client, section, about in chapters:
        lines += [title, "-" * len(title), "", about, ""]
        parameters = inspect.signature(client).parameters
        for name, text in _described(client, section).items():
            if name not in _LEFT_OUT:
                lines += _entry(name, parameters[name].default, text)
    return "\n".join(lines)


def _described(documented: type, section: str) -> dict[str, str]:
    """Return the texts of a section of a docstring by the names that they explain."""
    block = (inspect.getdoc(documented) or "").partition(f"\n{section}:\n")[2]
    block = re.split(r"^\S", block, maxsplit=1, flags=re.MULTILINE)[0]
    found = re.findall(r"^    (\w+): (.*(?:\n {5,}.*)*)", block, re.MULTILINE)
    return {name: " ".join(text.split()) for name, text in found}


def _entry(name: str, default: Any, text: str) -> Iterator[str]:
    shown = f"{default:_}" if isinstance(default, int) and not isinstance(default, bool) else repr(default)
    yield f"``{name}`` (required)" if default is inspect.Parameter.empty else f"``{name}`` (default ``{shown}``)"
    yield from _wrapped(text, "    ")
    yield ""


def _wrapped(text: str, indent: str = "") -> list[str]:
    return textwrap.wrap(text, _WIDTH, initial_indent=indent, subsequent_indent=indent, break_on_hyphens=False)


if __name__ == "__main__":
    sys.stdout.write(settings_page())
