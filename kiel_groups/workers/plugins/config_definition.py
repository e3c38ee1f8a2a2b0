"""Declare all settings of a connector, and check what users give against them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import lru_cache
from itertools import islice
from typing import Any, TypeAlias

from kiel_groups.errors import ConfigError
from kiel_groups.workers.plugins.config_key import ConfigKey

__all__ = ["CheckedConfig", "ConfigDefinition", "Settings"]

#: Settings as a connector gets them: typed values by name. Settings that are not declared are texts, as given.
Settings: TypeAlias = Mapping[str, Any]


#: How much a misspelt name resembles the declared one, from 0 to 1: ``flie`` is 0.75 like ``file``. Settings that Kafka
#: Connect has, and workers do not, such as ``tasks.max.enforce``, are 0.7 at most.
_MISTYPED = 0.72


@dataclass(frozen=True, slots=True)
class CheckedConfig:
    """
    The outcome of a check.

    Args:
        values: The typed value of each setting that has a legal one, and the text of each one that is not declared.
        errors: What is wrong, by the setting's name. Each text names the setting.
        warnings: Given settings that are not declared, each with the nearest declared one.
        mistyped: Those that are probably misspelt, each with the declared one that is meant.
    """

    values: Settings
    errors: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()
    mistyped: Mapping[str, str] = field(default_factory=dict)

    @property
    def settings(self) -> Settings:
        """
        The values, if there are no errors.

        Raises:
            ConfigError: There are errors. The text has all of them, and the warnings: a setting is often missing
                because its name is mistyped.
        """
        if self.errors:
            errors = [text for texts in self.errors.values() for text in texts]
            raise ConfigError("; ".join([*errors, *self.warnings]))
        return self.values


#: The most characters of a name that is compared with others, and for how many settings of a check that is done:
#: users may give ten thousand unknown ones.
_LONGEST_NAME, MOST_HINTS = 200, 100


@lru_cache(maxsize=4_096)
def _nearest(name: str, names: tuple[str, ...], least: float) -> str | None:
    # A comparison takes some 20 us for each name, and a connector may have a thousand tasks with the same settings.
    near = get_close_matches(name, names, n=1, cutoff=least) if len(name) <= _LONGEST_NAME else ()
    return near[0] if near else None


class ConfigDefinition:
    """
    The settings that a connector declares, in the order in which users read about them.

    Args:
        keys: The settings. Their names differ.

    Raises:
        ConfigError: Two settings have the same name, or one is no ``ConfigKey``.
    """

    __slots__ = ("_keys",)

    def __init__(self, *keys: ConfigKey) -> None:
        self._keys: dict[str, ConfigKey] = {}
        for key in keys:
            if not isinstance(key, ConfigKey):
                raise ConfigError(f"a setting is of the type {type(key).__name__}; expected a ConfigKey")
            if key.name in self._keys:
                raise ConfigError(f"the setting {key.name!r} is declared twice")
            self._keys[key.name] = key

    def __iter__(self) -> Iterator[ConfigKey]:
        return iter(self._keys.values())

    def __contains__(self, name: object) -> bool:
        return name in self._keys

    def __getitem__(self, name: str) -> ConfigKey:
        return self._keys[name]

    def __len__(self) -> int:
        return len(self._keys)

    def __add__(self, other: ConfigDefinition) -> ConfigDefinition:
        """
        Return a definition with the settings of both.

        Raises:
            ConfigError: Both declare the same setting.
        """
        return ConfigDefinition(*self, *other)

    @property
    def groups(self) -> list[str]:
        """The headings of the settings, without duplicates, in the order of their first settings."""
        return list(dict.fromkeys(key.group for key in self))

    def check(self, config: Mapping[str, str | None]) -> CheckedConfig:
        """
        Check what a user has given; no error is raised. A setting without a value (None) counts as not given.

        Args:
            config: The texts by name.
        """
        values: dict[str, Any] = {}
        errors: dict[str, tuple[str, ...]] = {}
        for key in self:
            try:
                values[key.name] = key.parse(config.get(key.name))
            except ConfigError as error:
                errors[key.name] = (str(error),)
        unknown = {name: text for name, text in config.items() if name not in self and text is not None}
        likely = {name: self.nearest(name, _MISTYPED) for name in islice(unknown, MOST_HINTS)}
        mistyped = {name: near for name, near in likely.items() if near is not None}
        warnings = (self._unknown(name, near=number < MOST_HINTS) for number, name in enumerate(unknown))
        return CheckedConfig(values | unknown, errors, tuple(warnings), mistyped)

    def parse(self, config: Mapping[str, str | None]) -> Settings:
        """
        Return the typed settings.

        Raises:
            ConfigError: A setting is missing or not legal; the text has all errors.
        """
        return self.check(config).settings

    def nearest(self, name: str, least: float = 0.6) -> str | None:
        """Return the declared setting whose name resembles another one most, or None if none does by ``least``."""
        return _nearest(name, tuple(self._keys), least)

    def _unknown(self, name: str, *, near: bool) -> str:
        nearest = self.nearest(name) if near else None
        return f"{name}: there is no such setting{f'; did you mean {nearest!r}?' if nearest else ''}"
