"""
Find the classes of connectors: classes of installed packages by short names, and other classes by their full names.

The import of a class runs the code of its module. So if other machines can name a class to import, the operator lists
the allowed modules.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from functools import cached_property
from importlib.metadata import EntryPoint, entry_points
from importlib.util import find_spec
from typing import Literal, NamedTuple, TypeAlias

from kiel_groups.errors import ConfigError
from kiel_groups.secret_texts import error_texts
from kiel_groups.workers.plugins.config_definition import ConfigDefinition, full_name, load_class
from kiel_groups.workers.plugins.interfaces import Connector, SinkConnector, SinkTask, SourceConnector, SourceTask
from kiel_groups.workers.plugins.standard_keys import definition_of, task_definition_of

#: The group of entry points by which packages offer connectors: any name, and ``module:Class``.
ENTRY_POINTS = "kiel_groups.connectors"

#: The item of the allowed classes that means all entry points.
INSTALLED = "installed"

_SUFFIX = "Connector"

#: How errors begin: users name the class by this setting.
_SETTING = "connector.class: "

PluginKind: TypeAlias = Literal["source", "sink"]


class ConnectorPlugin(NamedTuple):
    """
    A connector that users can create.

    ``name`` is the full name of its class. ``alias`` is the class's short name, without ``Connector`` at the end.
    """

    name: str
    alias: str
    kind: PluginKind
    version: str


class PluginProblem(NamedTuple):
    """The name of an entry point whose class cannot be used as a connector, and the reason."""

    entry_point: str
    error: str


class _Offer(NamedTuple):
    """An entry point: its name, and the module and the name of its class."""

    name: str
    module: str
    class_name: str

    @property
    def full_name(self) -> str:
        return f"{self.module}.{self.class_name}"

    def has_name(self, name: str) -> bool:
        short_names = (self.name, self.class_name, self.class_name.removesuffix(_SUFFIX))
        return name.replace(":", ".") == self.full_name or name in short_names

    def load(self) -> type[Connector]:
        return _connector_class(f"{self.module}:{self.class_name}")


class PluginRegistry:
    """
    Finds and imports the classes of connectors. A class is imported when a caller asks for it.

    Args:
        offers: Pairs of a name and ``module:Class``; by default, the entry points of all installed packages.
        allowed: The classes that may be used: ``installed`` for all entry points, names of entry points, and modules,
            each with its submodules. None allows every class that can be imported.

    Raises:
        ConfigError: An item of ``allowed`` is neither the name of an entry point nor a module.
    """

    def __init__(self, offers: Iterable[tuple[str, str]] | None = None, allowed: Iterable[str] | None = None) -> None:
        if offers is None:
            offers = [(point.name, _target(point)) for point in entry_points(group=ENTRY_POINTS)]
        split = ((name, *target.partition(":")[::2]) for name, target in offers)
        # The same package may be found twice on the path.
        self._all_offers = self._offers = sorted(dict.fromkeys(_Offer(*each) for each in split))
        self._allowed = None if allowed is None else tuple(allowed)
        #: Every class of these modules and their submodules is allowed. None if every class is allowed.
        self._modules: tuple[str, ...] | None = None
        if self._allowed is not None:
            offered = {item: [each for each in self._offers if each.has_name(item)] for item in self._allowed}
            offered |= {INSTALLED: self._offers} if INSTALLED in offered else {}
            self._modules = tuple(self._module(item) for item, found in offered.items() if not found)
            self._offers = sorted({offer for found in offered.values() for offer in found})
        self._aliases = list(dict.fromkeys(offer.class_name.removesuffix(_SUFFIX) for offer in self._offers))

    def resolve(self, name: str) -> type[Connector]:
        """
        Return the class of a connector.

        Args:
            name: ``module:Class``, or the full name of the class. For an installed class, also its short name, with or
                without ``Connector`` at its end, or the name of its entry point.

        Raises:
            ConfigError: There is no such class, several classes have this short name, or the class is not allowed,
                cannot be imported, or is no connector that a worker can use. The text lists the known classes, or
                describes the fault.
        """
        found = {offer.full_name: offer for offer in self._offers if offer.has_name(name)}
        if not found:
            self._check_allowed("connector.class", name)
        if ":" in name:
            return _connector_class(name)
        if len(found) > 1:
            raise ConfigError(f"{_SETTING}{name!r} is ambiguous; expected one of {', '.join(sorted(found))}")
        if found:
            return next(iter(found.values())).load()
        if "." in name:
            try:
                return _connector_class(name)
            except ConfigError as error:
                raise ConfigError(f"{error}; {self._expected(name.rpartition('.')[2])}") from error
        raise ConfigError(f"{_SETTING}there is no connector {name!r}; {self._expected(name)}")

    def check_classes(self, definition: ConfigDefinition, config: Mapping[str, str | None]) -> None:
        """
        Check that the classes named in settings are allowed, because workers import these classes, too.

        Raises:
            ConfigError: A class is not allowed.
        """
        for key in definition:
            if key.type == "class" and (name := config.get(key.name)):
                self._check_allowed(key.name, name)

    def _check_allowed(self, setting: str, name: str) -> None:
        """Raise ConfigError if a class is in no allowed module. The caller has tried the allowed entry points."""
        if self._modules is None or self._allowed is None:
            return
        module = name.partition(":")[0] if ":" in name else name.rpartition(".")[0]
        if any(module == each or module.startswith(f"{each}.") for each in self._modules):
            return
        # The name of the entry point, which is not allowed, or the module of a class with its full name.
        more = next((offer.name for offer in self._all_offers if offer.has_name(name)), module)
        if not more:
            return
        raise ConfigError(
            f"{setting}: {name!r:.200} is not allowed on this worker; expected {self._listed}; to allow it, start all"
            f" workers of the group with --plugin-classes {','.join([*self._allowed, more]):.400}"
        )

    @property
    def plugins(self) -> list[ConnectorPlugin]:
        """
        The allowed installed connectors that can be imported, sorted by name. The first access imports the connectors.
        """
        return self._loaded[0]

    @property
    def problems(self) -> list[PluginProblem]:
        """The entry points whose classes cannot be used, sorted by name. The first access imports all classes."""
        return self._loaded[1]

    @cached_property
    def _loaded(self) -> tuple[list[ConnectorPlugin], list[PluginProblem]]:
        plugins: dict[str, ConnectorPlugin] = {}
        problems: list[PluginProblem] = []
        for offer in self._offers:
            try:
                found = offer.load()
            except ConfigError as error:
                problems.append(PluginProblem(offer.name, str(error).removeprefix(_SETTING)))
            else:
                name = full_name(found)
                kind: PluginKind = "sink" if issubclass(found, SinkConnector) else "source"
                plugins[name] = ConnectorPlugin(name, found.__name__.removesuffix(_SUFFIX), kind, found.version)
        return [plugins[name] for name in sorted(plugins)], problems

    def _expected(self, name: str) -> str:
        near = get_close_matches(name.removesuffix(_SUFFIX), self._aliases, n=1)
        meant = f"; did you mean {near[0]!r}?" if near else ""
        return f"expected {self._listed}{meant}"

    @property
    def _listed(self) -> str:
        """The allowed classes in words, for errors."""
        parts = [f"one of {', '.join(self._aliases)}"] if self._aliases else []
        if self._modules is None:
            parts.append("'module:Class'")
        elif self._modules:
            parts.append(f"'module:Class' of {', '.join(self._modules)}")
        return ", or ".join(parts) or "nothing: no class is allowed"

    def _module(self, name: str) -> str:
        """
        Check that a module exists, and return its name. The packages above the module are imported.

        Raises:
            ConfigError: The module does not exist.
        """
        try:
            exists = all(map(str.isidentifier, name.split("."))) and find_spec(name) is not None
        except (ImportError, ValueError, AttributeError):
            exists = False
        if not exists:
            points = ", ".join(dict.fromkeys(offer.name for offer in self._all_offers)) or "none are installed"
            raise ConfigError(
                f"plugin_classes: {name!r:.200} is neither an entry point nor a module; expected {INSTALLED!r}, names"
                f" of entry points ({points}) and modules, separated by commas"
            )
        return name


def _target(point: EntryPoint) -> str:
    """
    Return an entry point's class as ``module:Class``.

    If the entry point's value has another form, return the value unchanged.
    """
    try:
        return f"{point.module}:{point.attr or ''}"
    except AttributeError:  # The properties of ``EntryPoint`` fail with it for such a text.
        return point.value


def _connector_class(name: str) -> type[Connector]:
    """
    Import the class of a connector, and check the attributes that a worker and its REST interface read.

    Raises:
        ConfigError: The class cannot be imported, is not a complete connector, or has an attribute of a wrong type.
    """
    try:
        found = load_class(name)
    except ConfigError as error:
        raise ConfigError(f"{_SETTING}{error}") from error
    try:
        problem = _problem(found)
    except Exception as error:  # code of a plugin, such as its metaclass
        problem = f"cannot be used: {type(error).__name__}: {error_texts(error).summary}"
    if problem:
        raise ConfigError(f"{_SETTING}{name!r} {problem}")
    return found


def _problem(found: type) -> str:
    """
    Return the reason why a class cannot be used as a connector, or "" if it can be used.

    Later code relies on the declared types: one wrong class would fail the answers about all connectors.
    """
    if not issubclass(found, SourceConnector | SinkConnector):
        return "is not a connector; expected a subclass of SourceConnector or SinkConnector"
    if inspect.isabstract(found):
        return f"is abstract; it lacks {', '.join(sorted(found.__abstractmethods__))}"
    wanted = SourceTask if issubclass(found, SourceConnector) else SinkTask
    task_class = getattr(found, "task_class", None)
    if not (isinstance(task_class, type) and issubclass(task_class, wanted)):
        return f"has no task_class; expected a subclass of {wanted.__name__}"
    if inspect.isabstract(task_class):
        return f"has an abstract task_class; {task_class.__name__} lacks {', '.join(task_class.__abstractmethods__)}"
    version: object = found.version
    if not isinstance(version, str):
        return f"has a version of the type {type(version).__name__}; expected a str, such as '1.0'"
    config: object = found.config
    if not isinstance(config, ConfigDefinition):
        return f"has a config of the type {type(config).__name__}; expected a ConfigDefinition"
    task_config: object = task_class.config
    if not isinstance(task_config, ConfigDefinition | None):
        task = f"the task_class {task_class.__name__}, whose config is of the type {type(task_config).__name__}"
        return f"has {task}; expected a ConfigDefinition or None"
    try:
        definition_of(found)
        task_definition_of(found)
    except ConfigError as error:
        return f"cannot be used: {error}"
    return ""
