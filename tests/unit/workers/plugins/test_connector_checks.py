"""The checks of a connector's settings, and the report that Kafka Connect's clients expect."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import pytest

from kiel_groups.errors import ConfigError
from kiel_groups.model import Record
from kiel_groups.workers.plugins.config_definition import ConfigDefinition, ConfigKey, one_of
from kiel_groups.workers.plugins.connector_checks import checked_config, named_topics, run_settings, validation_report
from kiel_groups.workers.plugins.interfaces import SinkConnector, SinkTask
from kiel_groups.workers.plugins.standard_keys import SINK_KEYS, SOURCE_KEYS, STANDARD_KEYS, definition_of
from kiel_groups.workers.shipped.file_stream_source import FileStreamSourceConnector
from kiel_groups.workers.shipped.http_sink import HttpSinkConnector

pytestmark = pytest.mark.unit


class Task(SinkTask):
    def put(self, records: Sequence[Record]) -> None:
        """Take the records."""


class Sink(SinkConnector):
    task_class = Task
    config = ConfigDefinition(
        ConfigKey("url", documentation="Where records go.", importance="high", group="Target", dependents=("mode",)),
        ConfigKey("token", "password", group="Target", width="long", display_name="Token"),
        ConfigKey("mode", default="fast", validator=one_of("fast", "safe"), group="Target", width="short"),
    )

    @classmethod
    def check(cls, settings: Mapping[str, Any]) -> Mapping[str, str | Sequence[str]]:
        if settings["url"] == "raise":
            raise RuntimeError(f"no licence for {settings['token'].value}")
        if settings["url"] == "text":
            return {"url": f"url: not http://u:{settings['token'].value}@host!", "mode": ""}
        if settings["url"] == "plain":
            return {"url": f"url: {settings['token'].value} and {settings['api.key']!r} are refused"}
        if settings["url"] == "elsewhere":
            return {"url": ["url: not here"], "zone": ["zone: required there"], "mode": []}
        return {}

    def task_configs(self, most: int) -> list[Mapping[str, str]]:
        return []


class TaskWithSettings(Task):
    config: ClassVar[ConfigDefinition] = ConfigDefinition(ConfigKey("part", "int"))


class SinkWithTaskSettings(Sink):
    task_class = TaskWithSettings


GOOD = {"name": "c", "connector.class": "Sink", "topics": "a, b", "url": "u", "token": "s3cret"}


def test_good_settings_have_no_errors() -> None:
    """Standard settings are typed beside the connector's own."""
    settings = checked_config(Sink, GOOD).settings
    assert (settings["topics"], settings["tasks.max"], settings["restart.policy"]) == (["a", "b"], 1, "none")
    assert (settings["token"].value, settings["mode"]) == ("s3cret", "fast")


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"name": ""}, "name: '' given; expected 1 to 200 printable characters"),
        ({"name": "."}, "name: '.' given; expected 1 to 200 printable characters, and neither '.' nor '..', which"),
        ({"name": ".."}, "name: '..' given"),
        ({"topics": ""}, "topics: '' given; expected the names of one topic or more"),
        ({"topics": "a,b/c"}, "topics: 'a,b/c' given"),
        ({"tasks.max": "0"}, "tasks.max: '0' given; expected at least 1"),
        ({"restart.policy": "always"}, "restart.policy: 'always' given; expected one of none, backoff"),
        ({"url": "raise"}, "connector.class: Sink.check raised RuntimeError: no licence for [hidden]"),
        ({"url": "text"}, "url: not http://[hidden]@host!"),
        ({"url": "plain", "api.key": "k3y'"}, 'url: [hidden] and "[hidden]" are refused'),
        ({"url": "elsewhere"}, "url: not here; zone: required there"),
    ],
)
def test_bad_settings_have_errors(change: Mapping[str, str], expected: str) -> None:
    """Standard settings are checked, and the connector itself is asked about settings that are legal each."""
    with pytest.raises(ConfigError) as raised:
        _ = checked_config(Sink, GOOD | change).settings
    assert expected in str(raised.value)


def test_one_text_is_one_error() -> None:
    """A check may return a text in place of a list with one text; an empty one is no error."""
    assert checked_config(Sink, GOOD | {"url": "text"}).errors == {"url": ("url: not http://[hidden]@host!",)}


def test_a_task_has_its_connectors_standard_settings() -> None:
    """A task that returns only its own settings has the standard ones; required settings must be there."""
    settings = run_settings(SinkWithTaskSettings, GOOD, {"part": "3", "name": "another", "extra": "e"}).settings
    assert (settings["part"], settings["name"], settings["topics"], settings["extra"]) == (3, "c", ["a", "b"], "e")
    with pytest.raises(ConfigError, match="part: required"):
        _ = run_settings(SinkWithTaskSettings, GOOD, GOOD).settings
    assert run_settings(Sink, GOOD, {"url": "v", "token": "t"}).settings["url"] == "v"
    with pytest.raises(ConfigError, match="url: required"):
        _ = run_settings(Sink, GOOD, {}).settings


def test_a_report_has_the_form_of_kafka_connect() -> None:
    """A report names all settings with their definitions and values. Passwords are hidden."""
    report = validation_report(Sink, GOOD)
    assert {name: value for name, value in report.items() if name != "configs"} == {
        "name": f"{__name__}.Sink",
        "error_count": 0,
        "groups": ["Common", "Failures", "Target"],
    }
    names = [key.name for key in definition_of(Sink)]
    assert names == [*(key.name for key in STANDARD_KEYS), "topics", "errors.tolerance", "url", "token", "mode"]
    assert [each["definition"]["name"] for each in report["configs"]] == names
    assert report["configs"][-2] == {
        "definition": {
            "name": "token",
            "type": "PASSWORD",
            "required": True,
            "default_value": None,
            "importance": "MEDIUM",
            "documentation": "",
            "group": "Target",
            "width": "LONG",
            "display_name": "Token",
            "dependents": [],
            "order": 2,
        },
        "value": {"name": "token", "value": "[hidden]", "recommended_values": [], "errors": [], "visible": True},
    }
    assert report["configs"][-1]["value"]["recommended_values"] == ["fast", "safe"]
    assert report["configs"][-1]["definition"]["default_value"] == "fast"
    topics = report["configs"][names.index("topics")]
    assert (topics["definition"]["type"], topics["value"]["value"]) == ("LIST", "a,b")
    assert "s3cret" not in json.dumps(report)


def test_a_report_has_errors_and_warnings() -> None:
    """Each error is at its setting; a setting that is not declared is a warning, which Kafka Connect lacks."""
    report = validation_report(Sink, {"name": "c", "topics": "a", "tasks.max": "x", "tokn": "s3cret"})
    errors = {each["value"]["name"]: each["value"]["errors"] for each in report["configs"] if each["value"]["errors"]}
    assert errors.keys() == {"connector.class", "url", "token", "tasks.max"}
    assert errors["tasks.max"] == ["tasks.max: 'x' given; expected a whole number of 32 bits"]
    assert report["error_count"] == 4
    assert report["warnings"] == ["tokn: there is no such setting; did you mean 'token'?"]
    assert report["mistyped"] == {"tokn": "token"}
    values = {each["value"]["name"]: each["value"]["value"] for each in report["configs"]}
    assert (values["tasks.max"], values["restart.max"]) == (None, "10")
    assert "s3cret" not in json.dumps(report)


def test_a_report_has_no_secrets_of_texts() -> None:
    """The value of a setting that is no password is shown without the password in it."""
    report = validation_report(Sink, GOOD | {"url": "http://u:12/pw@host/"})
    values = {each["value"]["name"]: each["value"]["value"] for each in report["configs"]}
    assert values["url"] == "http://[hidden]@host/"


def test_a_report_has_errors_of_undeclared_settings() -> None:
    """An error of a setting that is not declared has no definition."""
    report = validation_report(Sink, GOOD | {"url": "elsewhere", "zone": "z"})
    assert report["configs"][-1] == {
        "definition": None,
        "value": {
            "name": "zone",
            "value": "z",
            "recommended_values": [],
            "errors": ["zone: required there"],
            "visible": True,
        },
    }


def test_all_settings_are_documented() -> None:
    """Every standard setting has documentation that ends in a full stop."""
    assert all(key.documentation.endswith(".") for key in STANDARD_KEYS + SOURCE_KEYS + SINK_KEYS)


def test_the_topics_in_settings_are_named() -> None:
    """They are in declared settings that take names of topics; a setting that is not legal has none."""
    config = {"topics": "a,b", "dead.letter.topic": "c", "url": "http://topic", "name": "d"}
    assert named_topics(HttpSinkConnector, config) == {"topics": ["a", "b"], "dead.letter.topic": ["c"]}
    assert named_topics(FileStreamSourceConnector, {"topic": "a", "file": "b"}) == {"topic": ["a"]}
    assert named_topics(HttpSinkConnector, {"topics": "a b"}) == {}
