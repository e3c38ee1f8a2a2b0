"""Connectors are found by their names, and one that cannot be imported harms no other."""

from __future__ import annotations

import sys
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest

from kiel_groups.errors import ConfigError
from kiel_groups.workers.plugins import plugin_registry
from kiel_groups.workers.plugins.config_definition import ConfigDefinition, ConfigKey
from kiel_groups.workers.plugins.interfaces import Connector, SinkConnector, SourceConnector, SourceRecord, SourceTask
from kiel_groups.workers.plugins.plugin_registry import ENTRY_POINTS, ConnectorPlugin, PluginProblem, PluginRegistry

pytestmark = pytest.mark.unit


class Task(SourceTask):
    def poll(self) -> Sequence[SourceRecord]:
        return []


class PlainConnector(SourceConnector):
    version = "2.3"
    task_class = Task

    def task_configs(self, most: int) -> Sequence[Mapping[str, str]]:
        return []


class WithoutTask(PlainConnector):
    task_class = str  # type: ignore[assignment]


class WithoutConfigs(SourceConnector):
    task_class = Task


class AbstractTask(Task):
    @abstractmethod
    def more(self) -> None: ...


class WithAbstractTask(PlainConnector):
    task_class = AbstractTask


class WithStandardSetting(PlainConnector):
    config = ConfigDefinition(ConfigKey("tasks.max", "int"))


class Raising(type(PlainConnector)):  # type: ignore[misc]
    @property
    def version(cls) -> str:
        raise RuntimeError("no licence")


class WithRaisingMetaclass(SourceConnector, metaclass=Raising):
    task_class = Task

    def task_configs(self, most: int) -> Sequence[Mapping[str, str]]:
        return []


class NeitherConnector(Connector):
    def task_configs(self, most: int) -> Sequence[Mapping[str, str]]:
        return []


class SourceForSinks(SinkConnector):
    task_class = Task  # type: ignore[assignment]

    def task_configs(self, most: int) -> Sequence[Mapping[str, str]]:
        return []


PLAIN = f"{__name__}.PlainConnector"


@pytest.mark.parametrize("name", [f"{__name__}:PlainConnector", PLAIN, "PlainConnector", "Plain", "the-plain-one"])
def test_a_connector_has_several_names(name: str) -> None:
    """A class is found by both forms of its full name, its short name, its alias, and its entry point's name."""
    registry = PluginRegistry([("the-plain-one", f"{__name__}:PlainConnector")])
    assert registry.resolve(name) is PlainConnector


@pytest.mark.parametrize("name", [f"{__name__}:PlainConnector", PLAIN])
def test_a_connector_does_not_have_to_be_installed(name: str) -> None:
    """A full name finds every class that can be imported."""
    assert PluginRegistry([]).resolve(name) is PlainConnector


def test_an_unknown_name_is_refused() -> None:
    """The error lists the installed connectors, with the nearest one, or only the form of names if there are none."""
    registry = PluginRegistry([("a", f"{__name__}:PlainConnector"), ("b", "other.module:FileSource")])
    with pytest.raises(ConfigError) as raised:
        registry.resolve("FilesSourceConnector")
    assert str(raised.value) == (
        "connector.class: there is no connector 'FilesSourceConnector'; expected one of Plain, FileSource, or"
        " 'module:Class'; did you mean 'FileSource'?"
    )
    with pytest.raises(ConfigError, match=r"cannot import 'org\.apache'.*; did you mean 'Plain'\?"):
        registry.resolve("org.apache.PlainConnector")
    with pytest.raises(ConfigError, match=r"there is no connector 'X'; expected 'module:Class'$"):
        PluginRegistry([]).resolve("X")


def test_an_ambiguous_name_is_refused() -> None:
    """A short name of two classes is refused with their full names, which are not ambiguous."""
    registry = PluginRegistry([("a", f"{__name__}:PlainConnector"), ("b", "another.module:Plain")])
    with pytest.raises(ConfigError) as raised:
        registry.resolve("Plain")
    expected = (
        f"connector.class: 'Plain' is ambiguous; expected one of {', '.join(sorted([PLAIN, 'another.module.Plain']))}"
    )
    assert str(raised.value) == expected
    assert registry.resolve(PLAIN) is PlainConnector


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("WithoutTask", "has no task_class; expected a subclass of SourceTask"),
        ("WithoutConfigs", "is abstract; it lacks task_configs"),
        ("WithAbstractTask", "has an abstract task_class; AbstractTask lacks more"),
        ("WithStandardSetting", "cannot be used: the setting 'tasks.max' is declared twice"),
        ("NeitherConnector", "is not a connector; expected a subclass of SourceConnector or SinkConnector"),
        ("SourceForSinks", "has no task_class; expected a subclass of SinkTask"),
        ("Task", "is not a connector"),
    ],
)
def test_a_class_that_is_no_connector_is_refused(name: str, expected: str) -> None:
    """A class that is not a complete connector is refused with what it lacks."""
    with pytest.raises(ConfigError, match=expected):
        PluginRegistry([]).resolve(f"{__name__}:{name}")


@pytest.mark.parametrize(
    ("attribute", "value", "expected"),
    [
        ("version", None, "has a version of the type NoneType; expected a str, such as '1.0'"),
        ("version", 3, "has a version of the type int; expected a str"),
        ("version", property(lambda self: "1"), "has a version of the type property; expected a str"),
        ("config", None, "has a config of the type NoneType; expected a ConfigDefinition"),
        ("config", {"file": "x"}, "has a config of the type dict; expected a ConfigDefinition"),
        ("config", [ConfigKey("file")], "has a config of the type list; expected a ConfigDefinition"),
        ("config", "file", "has a config of the type str; expected a ConfigDefinition"),
        ("config", ConfigDefinition, "has a config of the type type; expected a ConfigDefinition"),
        ("task_class", property(lambda self: Task), "has no task_class; expected a subclass of SourceTask"),
        ("task_class", None, "has no task_class; expected a subclass of SourceTask"),
    ],
)
def test_a_class_with_an_attribute_of_another_type_is_refused(
    attribute: str, value: Any, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error names the class, what it has and what is expected; other connectors are listed."""
    monkeypatch.setattr(PlainConnector, attribute, value, raising=False)
    shipped = "kiel_groups.workers.shipped.file_stream_source:FileStreamSourceConnector"
    registry = PluginRegistry([("Plain", f"{__name__}:PlainConnector"), ("File", shipped)])
    with pytest.raises(ConfigError) as raised:
        registry.resolve("Plain")
    assert str(raised.value).startswith(f"connector.class: '{__name__}:PlainConnector' {expected}")
    assert [plugin.alias for plugin in registry.plugins] == ["FileStreamSource"]
    assert registry.problems == [PluginProblem("Plain", str(raised.value).removeprefix("connector.class: "))]


@pytest.mark.parametrize("config", [{"file": "x"}, [ConfigKey("file")], "file", property(lambda self: None)])
def test_a_task_class_with_a_config_of_another_type_is_refused(config: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The settings of a task are a definition, or None if they are those of its connector."""
    monkeypatch.setattr(Task, "config", config)
    expected = f"has the task_class Task, whose config is of the type {type(config).__name__}; expected a Config"
    with pytest.raises(ConfigError, match=f"connector.class: '{PLAIN}' {expected}"):
        PluginRegistry([]).resolve(PLAIN)


def test_an_attribute_that_raises_is_refused() -> None:
    """A metaclass of a plugin may raise anything."""
    with pytest.raises(ConfigError, match=r"WithRaisingMetaclass' cannot be used: RuntimeError: no licence"):
        PluginRegistry([]).resolve(f"{__name__}:WithRaisingMetaclass")


def test_a_plugin_that_cannot_be_imported_harms_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The others are listed and found. The broken one is a problem with the error of its import."""
    (tmp_path / "broken_connectors.py").write_text("import sys; sys.exit('no licence')", encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    registry = PluginRegistry([("Broken", "broken_connectors:Broken"), ("Plain", f"{__name__}:PlainConnector")])
    assert registry.plugins == [ConnectorPlugin(PLAIN, "Plain", "source", "2.3")]
    error = "'broken_connectors:Broken': cannot import 'broken_connectors': SystemExit: no licence"
    assert registry.problems == [PluginProblem("Broken", error)]
    with pytest.raises(ConfigError, match="no licence"):
        registry.resolve("Broken")
    assert registry.resolve("Plain") is PlainConnector


#: What a module does when it is imported, so that a test notices.
IMPORTED = "import builtins; builtins.imported_by_test.append(__name__)"


@pytest.fixture
def imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Offer the modules ``loud``, ``acme`` and ``acme.more``, and return the names of those that are imported."""
    names: list[str] = []
    monkeypatch.setattr("builtins.imported_by_test", names, raising=False)
    (tmp_path / "acme").mkdir()
    made = f"from {__name__} import PlainConnector\n"
    for file in ("loud.py", "loudest.py", "acme/__init__.py", "acme/more.py"):
        (tmp_path / file).write_text(f"{IMPORTED}\n{made}", encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    for name in ("loud", "loudest", "acme", "acme.more"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    yield names  # type: ignore[misc]
    for name in ("loud", "loudest", "acme", "acme.more"):
        sys.modules.pop(name, None)


OFFERS = [("the-plain-one", f"{__name__}:PlainConnector"), ("Loud", "loud:PlainConnector")]


@pytest.mark.parametrize(
    ("allowed", "names"),
    [
        (["installed"], [PLAIN, f"{__name__}:PlainConnector", "Loud", "loud:PlainConnector", "loud.PlainConnector"]),
        (["the-plain-one"], ["the-plain-one", "Plain", PLAIN]),
        (["Loud"], ["Loud", "PlainConnector", "loud:PlainConnector"]),
        (["acme"], ["acme:PlainConnector", "acme.PlainConnector", "acme.more:PlainConnector"]),
        (["the-plain-one", "acme.more"], ["Plain", "acme.more.PlainConnector"]),
        (None, ["acme:PlainConnector", "loudest.PlainConnector", "the-plain-one"]),
    ],
)
@pytest.mark.usefixtures("imported")
def test_allowed_classes_are_found_by_all_their_names(allowed: list[str] | None, names: list[str]) -> None:
    """An entry point allows its class, a module its classes and those of its submodules, and None everything."""
    registry = PluginRegistry(OFFERS, allowed)
    assert [registry.resolve(name).__name__ for name in names] == ["PlainConnector"] * len(names)


@pytest.mark.parametrize(
    ("allowed", "name", "listed", "more"),
    [
        (["installed"], "acme:PlainConnector", "one of Plain", "installed,acme"),
        (["installed"], "acme.PlainConnector", "one of Plain", "installed,acme"),
        (["installed"], "loud.more:PlainConnector", "one of Plain", "installed,loud.more"),
        (["installed"], "acme:json.JSONDecoder", "one of Plain", "installed,acme"),
        (["the-plain-one"], "Loud", "one of Plain", "the-plain-one,Loud"),
        (["the-plain-one"], "loud:PlainConnector", "one of Plain", "the-plain-one,Loud"),
        (["acme.more"], "acme:PlainConnector", "'module:Class' of acme.more", "acme.more,acme"),
        (["Loud", "acme.more"], "acme.mo:X", "one of Plain, or 'module:Class' of acme.more", "Loud,acme.more,acme.mo"),
        (["loud"], "loudest:PlainConnector", "'module:Class' of loud", "loud,loudest"),
        ([], "Loud", "nothing: no class is allowed", "Loud"),
    ],
)
def test_another_class_is_refused_and_not_imported(
    imported: list[str], allowed: list[str], name: str, listed: str, more: str
) -> None:
    """An import runs code. The error says what is allowed, and how an operator allows this class."""
    offers = OFFERS if allowed != ["loud"] else OFFERS[:1]
    registry = PluginRegistry(offers, allowed)
    del imported[:]
    with pytest.raises(ConfigError) as raised:
        registry.resolve(name)
    assert str(raised.value) == (
        f"connector.class: {name!r} is not allowed on this worker; expected {listed}; to allow it, start all workers of"
        f" the group with --plugin-classes {more}"
    )
    assert imported == []


def test_only_allowed_entry_points_are_listed_and_imported(imported: list[str]) -> None:
    """A package that the operator has not named does not run."""
    registry = PluginRegistry(OFFERS, ["the-plain-one"])
    assert ([plugin.name for plugin in registry.plugins], registry.problems, imported) == ([PLAIN], [], [])
    with pytest.raises(ConfigError, match=r"there is no connector 'X'; expected one of Plain$"):
        registry.resolve("X")


@pytest.mark.parametrize("item", ["FileStreamSorce", "no.such.module", "", "a:b", "json.nothing", "-", "__main__"])
def test_an_allowed_class_must_exist(item: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A mistyped name is refused at the start, with what can be named."""
    monkeypatch.setattr(sys.modules["__main__"], "__spec__", None, raising=False)
    with pytest.raises(ConfigError) as raised:
        PluginRegistry(OFFERS, [item])
    assert str(raised.value) == (
        f"plugin_classes: {item!r} is neither an entry point nor a module; expected 'installed', names of entry points"
        " (Loud, the-plain-one) and modules, separated by commas"
    )


def test_an_entry_point_that_is_found_twice_is_one() -> None:
    """A package that is on the path twice offers its connectors once."""
    offers = [("Plain", f"{__name__}:PlainConnector")] * 2
    assert PluginRegistry(offers).resolve("Plain") is PlainConnector
    assert len(PluginRegistry(offers).plugins) == 1


def test_each_entry_point_without_a_class_is_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    """The problem has the name of the entry point, also if its text is not legal, or another one has the same text."""
    texts = {"Empty": __name__, "Gone": f"{__name__}:Gone", "Gone2": f"{__name__}:Gone", "Odd": "no reference!"}
    points = [EntryPoint(name, text, ENTRY_POINTS) for name, text in texts.items()]
    monkeypatch.setattr(plugin_registry, "entry_points", lambda group: points)
    registry = PluginRegistry()
    assert registry.plugins == []
    found = dict(registry.problems)
    assert found == {
        "Empty": f"'{__name__}:' is not the name of a class; expected 'module:Class' or 'package.module.Class'",
        "Gone": f"'{__name__}:Gone': the module '{__name__}' has no class 'Gone'",
        "Gone2": found["Gone"],
        "Odd": "'no reference!:' is not the name of a class; expected 'module:Class' or 'package.module.Class'",
    }


def test_the_installed_package_offers_its_connectors() -> None:
    """The entry points of this package are the shipped connectors, and all of them can be imported."""
    shipped = {
        plugin.alias: plugin.kind for plugin in PluginRegistry().plugins if plugin.name.startswith("kiel_groups.")
    }
    assert shipped == {"FileStreamSource": "source", "FileStreamSink": "sink", "HttpSink": "sink", "Mirror": "source"}
