"""Declare the standard settings: every connector has them in addition to its own settings."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from functools import partial

from kiel_groups.config import check_name
from kiel_groups.errors import ConfigError
from kiel_groups.workers.plugins.config_definition import ConfigDefinition, ConfigKey, Validator, at_least, each, one_of
from kiel_groups.workers.plugins.interfaces import Connector, SinkConnector


def _is_topic(name: str) -> bool:
    with suppress(ConfigError):
        return bool(check_name(name, "topic"))
    return False


#: Accepts the name of a topic.
TOPIC_NAME = Validator(_is_topic, "the name of a topic (letters, digits, '.', '_' and '-')")

_CONNECTOR_NAME = Validator(
    lambda name: bool(name) and name.isprintable() and len(name) <= 200 and name not in (".", ".."),
    "1 to 200 printable characters, and neither '.' nor '..', which clients resolve in paths of URLs",
)
#: Accepts the names of one topic or more.
TOPIC_NAMES = Validator(lambda names: bool(names) and each(TOPIC_NAME).accepts(names), "the names of one topic or more")

#: Keys of one heading, which have more in common.
_common = partial(ConfigKey, group="Common", importance="high")
_failures = partial(ConfigKey, group="Failures", width="short")

#: The settings of all connectors.
STANDARD_KEYS = ConfigDefinition(
    _common(
        "name",
        documentation="The name of the connector, unique in its group of workers.",
        validator=_CONNECTOR_NAME,
        display_name="Connector name",
    ),
    _common(
        "connector.class",
        documentation="The class of the connector: its alias, such as FileStreamSource, its name, or module:Class.",
        display_name="Connector class",
        width="long",
    ),
    _common(
        "tasks.max",
        "int",
        1,
        documentation="The largest number of tasks that the connector may have.",
        validator=at_least(1),
        display_name="Tasks max",
        width="short",
    ),
    _failures(
        "restart.policy",
        default="none",
        documentation="What the worker does if the connector or a task fails: none leaves it FAILED until a user "
        "restarts it, backoff starts it again after a delay that doubles.",
        validator=one_of("none", "backoff"),
        display_name="Restart policy",
        dependents=("restart.max", "restart.backoff.ms", "restart.backoff.max.ms"),
    ),
    _failures(
        "restart.max",
        "int",
        10,
        documentation="How often the policy backoff starts the same connector or task again before it stays FAILED.",
        validator=at_least(0),
        display_name="Restarts max",
    ),
    _failures(
        "restart.backoff.ms",
        "long",
        1_000,
        documentation="The delay before the first restart, in milliseconds.",
        importance="low",
        validator=at_least(1),
        display_name="Restart back-off (ms)",
    ),
    _failures(
        "restart.backoff.max.ms",
        "long",
        60_000,
        documentation="The longest delay before a restart, in milliseconds.",
        importance="low",
        validator=at_least(1),
        display_name="Longest restart back-off (ms)",
    ),
    _failures(
        "task.stop.timeout.ms",
        "long",
        5_000,
        documentation="How long the worker waits for a task to stop, in milliseconds. A task that takes longer is "
        "abandoned: it is FAILED, and no other worker gets it before its call returns or the worker ends.",
        importance="low",
        validator=at_least(1),
        display_name="Task stop timeout (ms)",
    ),
)

#: The settings of all sources, in addition.
SOURCE_KEYS = ConfigDefinition(
    ConfigKey(
        "offset.flush.interval.ms",
        "long",
        1_000,
        documentation="How often a task's source offsets are stored, in milliseconds. After a crash, records that were "
        "delivered since are delivered again. A write that takes long lengthens the time to the next one, such that "
        "writes take a tenth of the time at most.",
        importance="low",
        validator=at_least(1),
        group="Common",
        display_name="Offset flush interval (ms)",
        width="short",
    ),
)

#: The settings of all sinks, in addition.
SINK_KEYS = ConfigDefinition(
    _common(
        "topics",
        "list",
        documentation="The topics whose records the sink gets, separated by commas.",
        validator=TOPIC_NAMES,
        display_name="Topics",
        width="long",
    ),
    _failures(
        "errors.tolerance",
        default="none",
        documentation="What happens to a record whose message is damaged: none fails the task, all logs and skips it.",
        validator=one_of("none", "all"),
        display_name="Error tolerance",
    ),
)


# Made once: a worker needs them several times for each task that it starts.
_OF_SOURCES, _OF_SINKS = STANDARD_KEYS + SOURCE_KEYS, STANDARD_KEYS + SINK_KEYS


def definition_of(connector_class: type[Connector]) -> ConfigDefinition:
    """
    Return all settings of a class of connectors: the standard settings, then its own settings.

    Raises:
        ConfigError: The class declares a standard setting itself.
    """
    return _standard(connector_class) + connector_class.config


def task_definition_of(connector_class: type[Connector]) -> ConfigDefinition:
    """
    Return all settings of the tasks of a class of connectors: the standard settings, then the tasks' own settings.

    If the task class declares no settings, return the settings of the connector.

    Raises:
        ConfigError: The class declares a standard setting itself.
    """
    own = connector_class.task_class.config
    return definition_of(connector_class) if own is None else _standard(connector_class) + own


def standard_settings(config: Mapping[str, str]) -> dict[str, str]:
    """
    Return the standard settings in the configuration of a connector. The connector's tasks have these settings, too.
    """
    return {name: text for name, text in config.items() if name in _OF_SOURCES or name in SINK_KEYS}


def _standard(connector_class: type[Connector]) -> ConfigDefinition:
    return _OF_SINKS if issubclass(connector_class, SinkConnector) else _OF_SOURCES
