"""
Run connectors and their tasks in a group of worker processes.

The workers divide connectors and tasks among themselves as consumers divide partitions.

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
        SourcePosition,
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
    "SourcePosition",
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

_HOMES = {
    "kiel_groups.workers.plugins.interfaces": (
        "Connector",
        "SourceConnector",
        "SinkConnector",
        "SourceTask",
        "SinkTask",
        "SourcePosition",
        "SourceRecord",
        "ConnectorContext",
        "SourceTaskContext",
        "SinkTaskContext",
    ),
    "kiel_groups.workers.plugins.config_definition": (
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
    ),
}

__getattr__, __dir__ = lazy_exports(__name__, _HOMES)
