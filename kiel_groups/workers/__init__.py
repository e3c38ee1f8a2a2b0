"""
Run connectors and their tasks in a group of worker processes, which share them as consumers share partitions.

Programs and the command line start workers. Connectors import the interfaces that they implement from here.
This package does not read or write topics on its own: connectors do, with the clients of ``kiel_groups.clients``.
"""

from typing import TYPE_CHECKING

from kiel_groups.lazy_imports import lazy_exports

if TYPE_CHECKING:
    from kiel_groups.workers.plugins.config_definition import (
        REQUIRED,
        ConfigDefinition,
        ConfigKey,
        Password,
        Validator,
        at_least,
        between,
        each,
        non_empty,
        one_of,
    )
    from kiel_groups.workers.plugins.interfaces import (
        Connector,
        ConnectorContext,
        SinkConnector,
        SinkTask,
        SinkTaskContext,
        SourceConnector,
        SourceRecord,
        SourceTask,
        SourceTaskContext,
    )

__all__ = [
    "Connector",
    "SourceConnector",
    "SinkConnector",
    "SourceTask",
    "SinkTask",
    "SourceRecord",
    "ConnectorContext",
    "SourceTaskContext",
    "SinkTaskContext",
    "ConfigDefinition",
    "ConfigKey",
    "REQUIRED",
    "Password",
    "Validator",
    "at_least",
    "between",
    "each",
    "non_empty",
    "one_of",
]

_PLUGINS = "kiel_groups.workers.plugins"
_HOMES = {
    "Connector": f"{_PLUGINS}.interfaces",
    "SourceConnector": f"{_PLUGINS}.interfaces",
    "SinkConnector": f"{_PLUGINS}.interfaces",
    "SourceTask": f"{_PLUGINS}.interfaces",
    "SinkTask": f"{_PLUGINS}.interfaces",
    "SourceRecord": f"{_PLUGINS}.interfaces",
    "ConnectorContext": f"{_PLUGINS}.interfaces",
    "SourceTaskContext": f"{_PLUGINS}.interfaces",
    "SinkTaskContext": f"{_PLUGINS}.interfaces",
    "ConfigDefinition": f"{_PLUGINS}.config_definition",
    "ConfigKey": f"{_PLUGINS}.config_definition",
    "REQUIRED": f"{_PLUGINS}.config_definition",
    "Password": f"{_PLUGINS}.config_definition",
    "Validator": f"{_PLUGINS}.config_definition",
    "at_least": f"{_PLUGINS}.config_definition",
    "between": f"{_PLUGINS}.config_definition",
    "each": f"{_PLUGINS}.config_definition",
    "non_empty": f"{_PLUGINS}.config_definition",
    "one_of": f"{_PLUGINS}.config_definition",
}

__getattr__, __dir__ = lazy_exports(__name__, _HOMES)
