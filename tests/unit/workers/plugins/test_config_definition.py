"""All settings of a connector together."""

from __future__ import annotations

from typing import Any

import pytest

from kiel_groups.errors import ConfigError
from kiel_groups.workers.plugins.config_definition import ConfigDefinition, ConfigKey
from kiel_groups.workers.plugins.interfaces import Connector
from kiel_groups.workers.plugins.standard_keys import definition_of
from kiel_groups.workers.shipped.file_stream_sink import FileStreamSinkConnector
from tests.helpers.connector_tables import SHIPPED

pytestmark = pytest.mark.unit

DEFINITION = ConfigDefinition(
    ConfigKey("file", group="File"),
    ConfigKey("batch.size", "int", 100, group="Batches"),
    ConfigKey("follow", "boolean", True, group="File"),
)


def test_settings_are_typed() -> None:
    """Values are typed, defaults are filled in, and settings that are not declared stay texts."""
    assert DEFINITION.parse({"file": "/a", "batch.size": "5", "other": "7"}) == {
        "file": "/a",
        "batch.size": 5,
        "follow": True,
        "other": "7",
    }


def test_all_errors_are_reported_together() -> None:
    """A check reports each setting that is wrong; ``parse`` raises all of it as one error."""
    checked = DEFINITION.check({"batch.size": "many", "follow": "no"})
    assert checked.errors == {
        "file": ("file: required, but not given; expected a text",),
        "batch.size": ("batch.size: 'many' given; expected a whole number of 32 bits",),
        "follow": ("follow: 'no' given; expected 'true' or 'false'",),
    }
    assert checked.values == {}
    with pytest.raises(ConfigError, match=r"file: required.*; batch.size: 'many'.*; follow: 'no'"):
        _ = checked.settings


def test_a_setting_without_a_value_counts_as_not_given() -> None:
    """None, as JSON's null, is no value: the default counts, or a required setting is missing."""
    assert DEFINITION.check({"file": "a", "batch.size": None, "other": None}).values == {
        "file": "a",
        "batch.size": 100,
        "follow": True,
    }
    assert "required" in DEFINITION.check({"file": None}).errors["file"][0]


def test_few_unknown_settings_are_compared_with_the_declared_ones() -> None:
    """Users may give ten thousand, and a comparison takes time; all of them are warnings."""
    checked = DEFINITION.check({"file": "a", **{f"batch.siz{n}": "1" for n in range(1_000)}})
    hints = [warning.endswith("did you mean 'batch.size'?") for warning in checked.warnings]
    assert hints == [True] * 100 + [False] * 900
    assert DEFINITION.nearest("batch.size" * 100) is None


def test_an_unknown_setting_is_a_warning() -> None:
    """A setting that is not declared is no error; the warning names the nearest declared one, if one is near."""
    checked = DEFINITION.check({"file": "a", "batchsize": "5", "xyz": "1"})
    assert checked.errors == {}
    assert checked.warnings == (
        "batchsize: there is no such setting; did you mean 'batch.size'?",
        "xyz: there is no such setting",
    )
    assert checked.mistyped == {"batchsize": "batch.size"}


@pytest.mark.parametrize("connector_class", SHIPPED)
def test_settings_that_only_kafka_connect_has_are_not_misspelt(connector_class: type[Connector]) -> None:
    """A configuration that comes from there is warned of, and not refused."""
    there = (
        "key.converter value.converter header.converter transforms predicates config.action.reload tasks.max.enforce"
        " errors.retry.timeout errors.log.enable errors.deadletterqueue.topic.name topics.regex topic.creation.groups"
    )
    assert definition_of(connector_class).check(dict.fromkeys(there.split(), "x")).mistyped == {}


@pytest.mark.parametrize(
    ("name", "near"),
    [("flie", "file"), ("topic", "topics"), ("task.max", "tasks.max"), ("tasks_max", "tasks.max"), ("fiel", "file")],
)
def test_misspelt_settings_are_told_from_others(name: str, near: str) -> None:
    """Swapped, missing and other letters are found in short names, too."""
    assert definition_of(FileStreamSinkConnector).check({name: "x"}).mistyped == {name: near}


def test_an_error_names_unknown_settings_too() -> None:
    """A required setting is often missing because its name is mistyped, so the error has the nearest declared name."""
    with pytest.raises(
        ConfigError, match=r"^file: required.*; fille: there is no such setting; did you mean 'file'\?$"
    ):
        DEFINITION.parse({"fille": "a"})


def test_definitions_are_joined() -> None:
    """Two definitions can be added unless both declare the same setting; groups keep their order."""
    both = DEFINITION + ConfigDefinition(ConfigKey("url", group="Target"))
    assert [key.name for key in both] == ["file", "batch.size", "follow", "url"]
    assert both.groups == ["File", "Batches", "Target"]
    assert (len(both), "url" in both, "url" in DEFINITION, both["url"].group) == (4, True, False, "Target")
    with pytest.raises(ConfigError, match="the setting 'file' is declared twice"):
        _ = both + DEFINITION


@pytest.mark.parametrize("key", ["file", None, [ConfigKey("file")]])
def test_what_is_no_setting_is_refused(key: Any) -> None:
    """The author of a connector notices it when the class is imported."""
    with pytest.raises(ConfigError, match=rf"a setting is of the type {type(key).__name__}; expected a ConfigKey"):
        ConfigDefinition(key)
