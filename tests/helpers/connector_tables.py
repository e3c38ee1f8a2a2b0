"""
Write ``docs/connector-settings.txt`` from the declared settings of the shipped connectors.

Run ``python -m tests.helpers.connector_tables > docs/connector-settings.txt`` after a change of a setting.
"""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Iterator

from kiel_groups.mirror.connector import MirrorConnector
from kiel_groups.workers.plugins.config_definition import ConfigDefinition, ConfigKey
from kiel_groups.workers.plugins.interfaces import Connector
from kiel_groups.workers.plugins.standard_keys import SINK_KEYS, SOURCE_KEYS, STANDARD_KEYS
from kiel_groups.workers.shipped.file_stream_sink import FileStreamSinkConnector
from kiel_groups.workers.shipped.file_stream_source import FileStreamSourceConnector
from kiel_groups.workers.shipped.http_sink import HttpSinkConnector

__all__ = ["SHIPPED", "settings_text"]

SHIPPED: tuple[type[Connector], ...] = (
    FileStreamSourceConnector,
    FileStreamSinkConnector,
    HttpSinkConnector,
    MirrorConnector,
)

_WIDTH = 120


def settings_text() -> str:
    """Return the whole text: the settings of every connector, every source and every sink, and of each shipped one."""
    chapters = [("Every connector", STANDARD_KEYS), ("Every source", SOURCE_KEYS), ("Every sink", SINK_KEYS)]
    chapters += [(each.__name__.removesuffix("Connector"), each.config) for each in SHIPPED]
    return "\n".join(line for title, definition in chapters for line in _chapter(title, definition))


def _chapter(title: str, definition: ConfigDefinition) -> Iterator[str]:
    yield from (title, "~" * len(title), "")
    for key in definition:
        yield f"``{key.name}`` ({', '.join(_traits(key))})"
        yield from textwrap.wrap(
            key.documentation, _WIDTH, initial_indent="    ", subsequent_indent="    ", break_on_hyphens=False
        )
        yield ""


def _traits(key: ConfigKey) -> Iterator[str]:
    yield key.type
    if key.required:
        yield "required"
    else:
        yield f"default ``{key.text(key.default)}``" if key.text(key.default) else "default: none"
    if key.validator:
        yield key.validator.expected


if __name__ == "__main__":
    sys.stdout.write(settings_text())
