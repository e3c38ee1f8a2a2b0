"""Load allocators and other functions by name."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from importlib import import_module
from operator import attrgetter
from typing import Any

from kiel_groups.allocators import ALLOCATORS, Allocator, installed_allocators, named_allocator
from kiel_groups.allocators.assignors import assignors_of
from kiel_groups.errors import ConfigError


def load_allocator(name: str | None, setting: str) -> Allocator | None:
    """
    Return a built-in or installed allocator by its name, or import a user's function.

    Args:
        name: One of ``ALLOCATORS``, the name of an entry point, or ``module:function``. For None, the function returns
            None.
        setting: The name of the setting in errors.

    Raises:
        ConfigError: There is no allocator of this name, or the function cannot be loaded.
    """
    if name is None:
        return None
    if ":" in name:
        return load_function(name, setting)
    if name in ALLOCATORS or name in installed_allocators():
        return named_allocator(name, setting)
    try:
        return named_allocator(name, setting)
    except ConfigError as error:
        text = str(error)
        joint = " A" if text.endswith("?") else "; a"
        raise ConfigError(f"{text}{joint} function of yours is named 'module:function'") from None


def load_assignors(names: str | None, setting: str) -> list[str | Allocator] | None:
    """
    Return the assignors that a member offers to a group of brokers: names of assignors, and imported functions.

    Args:
        names: The names, separated by commas, with the preferred name first. A function is named ``module:function``.
            For None, the function returns None.
        setting: The name of the setting in errors.

    Raises:
        ConfigError: There is no assignor of a name, an assignor is named twice, or a function cannot be loaded.
    """
    if names is None:
        return None
    chosen = [load_function(name, setting) if ":" in name else name for name in map(str.strip, names.split(","))]
    assignors_of(chosen, setting)
    return chosen


def load_function(name: str, setting: str) -> Callable[..., Any]:
    """
    Import a function by its name. The current folder is added to Python's path, so the module may be there.

    Args:
        name: ``module:function``.
        setting: The name of the setting in errors.

    Raises:
        ConfigError: The name has another form, the module cannot be imported, or the module has no such function.
    """
    module_name, colon, function_name = name.partition(":")
    if not (module_name and colon and function_name):
        raise ConfigError(f"{setting}: {name!r} given; expected 'module:function'")
    # An installed command, unlike `python -m`, does not have the current folder on its path.
    if os.getcwd() not in sys.path and "" not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        found = attrgetter(function_name)(_imported(module_name, setting))
    except AttributeError:
        raise ConfigError(f"{setting}: module {module_name!r} has no {function_name!r}") from None
    if not callable(found):
        raise ConfigError(f"{setting}: {name!r} is a value of type {type(found).__name__}; expected a function")
    function: Callable[..., Any] = found
    return function


def _imported(name: str, setting: str) -> Any:
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and f"{name}.".startswith(f"{error.name}."):
            raise ConfigError(
                f"{setting}: there is no module {name!r}, neither in {os.getcwd()} nor where Python looks for packages"
            ) from error
        raise ConfigError(f"{setting}: {name!r} cannot be imported: {error}") from error
    except (Exception, SystemExit) as error:  # A module may do anything while it is imported.
        raise ConfigError(f"{setting}: {name!r} cannot be imported: it raised {error!r}") from error
