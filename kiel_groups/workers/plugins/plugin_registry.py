"""Find the classes of connectors: those of installed packages by short names, and all others by their full names."""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from difflib import get_close_matches
from functools import cached_property
from importlib.metadata import entry_points
from typing import Literal, NamedTuple, TypeAlias

from kiel_groups.errors import ConfigError
from kiel_groups.workers.plugins.class_loader import full_name, load_class
from kiel_groups.workers.plugins.connector_interfaces import Connector, SinkConnector, SourceConnector
from kiel_groups.workers.plugins.standard_keys import definition_of, task_definition_of
from kiel_groups.workers.plugins.task_interfaces import SinkTask, SourceTask

__all__ = ["ENTRY_POINTS", "ConnectorPlugin", "PluginRegistry"]

#: The group of entry points by which packages offer connectors: any name, and ``module:Class``.
ENTRY_POINTS = "kiel_groups.connectors"

_SUFFIX = "Connector"

PluginKind: TypeAlias = Literal["source", "sink"]


class ConnectorPlugin(NamedTuple):
    """
    A connector that users can create.

    ``name`` is the full name of its class, and ``alias`` the short one without ``Connector`` at its end.
    """

    name: str
    alias: str
    kind: PluginKind
    version: str


class _Offer(NamedTuple):
    """An entry point: its own name, and where its class is."""

    name: str
    module: str
    class_name: str

    @property
    def full_name(self) -> str:
        return f"{self.module}.{self.class_name}"

    @property
    def short_names(self) -> set[str]:
        return {self.name, self.class_name, self.class_name.removesuffix(_SUFFIX)}

    def load(self) -> type[Connector]:
        return _connector_class(f"{self.module}:{self.class_name}")


class PluginRegistry:
    """
    The connectors of the installed packages. Their classes are imported when they are asked for.

    Args:
        offers: Pairs of a name and ``module:Class``; by default, the entry points of all installed packages.
    """

    def __init__(self, offers: Iterable[tuple[str, str]] | None = None) -> None:
        if offers is None:
            offers = [(point.name, f"{point.module}:{point.attr}") for point in entry_points(group=ENTRY_POINTS)]
        split = ((name, *target.partition(":")[::2]) for name, target in offers)
        # The same package may be found twice on the path.
        self._offers = sorted(dict.fromkeys(_Offer(*each) for each in split))

    def resolve(self, name: str) -> type[Connector]:
        """
        Return the class of a connector.

        Args:
            name: ``module:Class``, the full name of the class, or of an installed one its short name, with or without
                ``Connector`` at its end, or the name of its entry point.

        Raises:
            ConfigError: There is no such class, several have this short name, the class cannot be imported, or it is no
                connector. The text lists what exists.
        """
        if ":" in name:
            return _connector_class(name)
        found = {offer.full_name: offer for offer in self._offers if name in {offer.full_name, *offer.short_names}}
        if len(found) > 1:
            raise ConfigError(f"connector.class: {name!r} is ambiguous; expected one of {', '.join(sorted(found))}")
        if found:
            return next(iter(found.values())).load()
        if "." in name:
            try:
                return _connector_class(name)
            except ConfigError as error:
                raise ConfigError(f"{error}; {self._expected(name.rpartition('.')[2])}") from error
        raise ConfigError(f"connector.class: there is no connector {name!r}; {self._expected(name)}")

    @property
    def plugins(self) -> list[ConnectorPlugin]:
        """The installed connectors that can be imported, sorted by name. The first access imports all of them."""
        return self._loaded[0]

    @property
    def problems(self) -> dict[str, str]:
        """Why the other installed connectors cannot be used, by the full names of their classes."""
        return self._loaded[1]

    @cached_property
    def _loaded(self) -> tuple[list[ConnectorPlugin], dict[str, str]]:
        plugins: dict[str, ConnectorPlugin] = {}
        problems: dict[str, str] = {}
        for offer in self._offers:
            try:
                found = offer.load()
            except ConfigError as error:
                problems[offer.full_name] = str(error)
            else:
                name = full_name(found)
                kind: PluginKind = "sink" if issubclass(found, SinkConnector) else "source"
                plugins[name] = ConnectorPlugin(name, found.__name__.removesuffix(_SUFFIX), kind, found.version)
        return [plugins[name] for name in sorted(plugins)], problems

    def _expected(self, name: str) -> str:
        aliases = list(dict.fromkeys(offer.class_name.removesuffix(_SUFFIX) for offer in self._offers))
        near = get_close_matches(name.removesuffix(_SUFFIX), aliases, n=1)
        meant = f"; did you mean {near[0]!r}?" if near else ""
        installed = f"one of {', '.join(aliases)}, or " if aliases else ""
        return f"expected {installed}'module:Class'{meant}"


def _connector_class(name: str) -> type[Connector]:
    """
    Import the class of a connector, and check that it is complete.

    Raises:
        ConfigError: It cannot be imported, or is not complete.
    """
    try:
        found = load_class(name)
    except ConfigError as error:
        raise ConfigError(f"connector.class: {error}") from error
    problem = _problem(found)
    if problem:
        raise ConfigError(f"connector.class: {name!r} {problem}")
    return found


def _problem(found: type) -> str:
    """Return what makes a class unusable as a connector, or ""."""
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
    try:
        definition_of(found)
        task_definition_of(found)
    except ConfigError as error:
        return f"cannot be used: {error}"
    return ""
