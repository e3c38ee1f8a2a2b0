"""
Run connectors and their tasks in a group of worker processes, which share them as consumers share partitions.

Programs and the command line start workers. Connectors import the interfaces that they implement from here.
This package does not read or write topics on its own: connectors do, with the clients of ``kiel_groups.clients``.
"""

from typing import TYPE_CHECKING

from kiel_groups.lazy_imports import lazy_exports

if TYPE_CHECKING:
    from kiel_groups.workers.plugins.config_definition import ConfigDefinition
    from kiel_groups.workers.plugins.config_key import REQUIRED, ConfigKey
    from kiel_groups.workers.plugins.config_types import Password
    from kiel_groups.workers.plugins.config_validators import Validator, at_least, between, each, non_empty, one_of
    from kiel_groups.workers.plugins.connector_interfaces import Connector, SinkConnector, SourceConnector
    from kiel_groups.workers.plugins.plugin_contexts import ConnectorContext, SinkTaskContext, SourceTaskContext
    from kiel_groups.workers.plugins.task_interfaces import SinkTask, SourceRecord, SourceTask

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
    "Connector": f"{_PLUGINS}.connector_interfaces",
    "SourceConnector": f"{_PLUGINS}.connector_interfaces",
    "SinkConnector": f"{_PLUGINS}.connector_interfaces",
    "SourceTask": f"{_PLUGINS}.task_interfaces",
    "SinkTask": f"{_PLUGINS}.task_interfaces",
    "SourceRecord": f"{_PLUGINS}.task_interfaces",
    "ConnectorContext": f"{_PLUGINS}.plugin_contexts",
    "SourceTaskContext": f"{_PLUGINS}.plugin_contexts",
    "SinkTaskContext": f"{_PLUGINS}.plugin_contexts",
    "ConfigDefinition": f"{_PLUGINS}.config_definition",
    "ConfigKey": f"{_PLUGINS}.config_key",
    "REQUIRED": f"{_PLUGINS}.config_key",
    "Password": f"{_PLUGINS}.config_types",
    "Validator": f"{_PLUGINS}.config_validators",
    "at_least": f"{_PLUGINS}.config_validators",
    "between": f"{_PLUGINS}.config_validators",
    "each": f"{_PLUGINS}.config_validators",
    "non_empty": f"{_PLUGINS}.config_validators",
    "one_of": f"{_PLUGINS}.config_validators",
}

__getattr__, __dir__ = lazy_exports(__name__, _HOMES)
