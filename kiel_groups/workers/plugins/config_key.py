"""Declare one setting of a connector: its name, type, default, legal values and documentation."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any, Final, Literal, TypeAlias, get_args

from kiel_groups.errors import ConfigError
from kiel_groups.workers.plugins.config_types import TYPES, TypeName, given, parsed
from kiel_groups.workers.plugins.config_validators import Validator
from kiel_groups.workers.plugins.secret_texts import HIDDEN

__all__ = ["REQUIRED", "ConfigKey", "Importance", "Width"]

Importance: TypeAlias = Literal["high", "medium", "low"]
Width: TypeAlias = Literal["none", "short", "medium", "long"]


class _Required(Enum):
    REQUIRED = "required"


#: The default of a setting that has none: users must give a value.
REQUIRED: Final = _Required.REQUIRED


@dataclass(frozen=True, slots=True)
class ConfigKey:
    """
    One setting, as a connector declares it.

    Args:
        name: The name, in Kafka's style: words in lower case, separated by dots. Durations end in ``.ms``.
        type: The type of the value. Settings are given as texts.
        default: The typed value if users give none, such as a list for the type ``list``, or a ``Password``. None is
            allowed for every type. By default, users must give a value.
        documentation: What the setting does, in whole sentences.
        importance: How much users have to think about it.
        validator: What values are legal, beyond the type.
        group: The heading under which tools show the setting.
        display_name: The name that tools show; by default, ``name``.
        width: The width of the field in which tools show the value.
        dependents: The names of other settings that the value has an effect on.

    Raises:
        ConfigError: The default is not a legal value, or another argument is not of its type.
    """

    name: str
    type: TypeName = "string"
    default: Any = REQUIRED
    documentation: str = ""
    importance: Importance = "medium"
    validator: Validator | None = None
    group: str = "Connector"
    display_name: str = ""
    width: Width = "medium"
    dependents: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        self._check_arguments()
        if self.type not in TYPES:
            raise ConfigError(f"{self.name}: there is no type {self.type!r}; expected one of {', '.join(TYPES)}")
        if self.default is REQUIRED or self.default is None:
            return
        rules = TYPES[self.type]
        if not rules.accepts(self.default):
            shown = HIDDEN if self.type == "password" else repr(self.default)
            raise ConfigError(
                f"{self.name}: the default {shown} is of the Python type {type(self.default).__name__}; a setting of"
                f" the type {self.type} expects {rules.python}"
            )
        self._validate(self.default, rules.text(self.default))

    def _check_arguments(self) -> None:
        """Check what users see of the setting: a wrong type would not be noticed before an answer to a user fails."""
        if not isinstance(self.name, str):
            raise ConfigError(f"the name of a setting is {self.name!r}; expected a str")
        for argument in ("documentation", "group", "display_name"):
            if not isinstance(found := getattr(self, argument), str):
                raise ConfigError(f"{self.name}: {argument} is {found!r}; expected a str")
        for argument, choices in (("importance", get_args(Importance)), ("width", get_args(Width))):
            if (found := getattr(self, argument)) not in choices:
                raise ConfigError(f"{self.name}: {argument} is {found!r}; expected one of {', '.join(choices)}")
        if not isinstance(self.validator, Validator | None):
            raise ConfigError(f"{self.name}: validator is {self.validator!r}; expected a Validator or None")
        if not isinstance(self.dependents, list | tuple) or not all(isinstance(name, str) for name in self.dependents):
            raise ConfigError(f"{self.name}: dependents is {self.dependents!r}; expected a tuple of str")

    @property
    def required(self) -> bool:
        """Whether users must give a value."""
        return self.default is REQUIRED

    def parse(self, text: str | None) -> Any:
        """
        Return the typed value of a setting.

        Args:
            text: What the user has given; None if the user has given nothing.

        Raises:
            ConfigError: The setting is required and was not given, or the value is not legal. The error names the
                setting, what was given, and what was expected.
        """
        if text is None:
            if self.default is REQUIRED:
                raise ConfigError(f"{self.name}: required, but not given; expected {self.expected}")
            # The caller may change a list.
            return list(self.default) if isinstance(self.default, list | tuple) else self.default
        try:
            value = parsed(self.type, text)
        except ConfigError as error:
            raise ConfigError(f"{self.name}: {error}") from error
        self._validate(value, text.strip())
        return value

    @property
    def expected(self) -> str:
        """The legal values in words."""
        rules = TYPES[self.type].expected
        return f"{rules}: {self.validator.expected}" if self.validator else rules

    def text(self, value: Any) -> str | None:
        """Return a typed value as users see it, or None for None; secrets are hidden."""
        return None if value is None or value is REQUIRED else TYPES[self.type].text(value)

    def _validate(self, value: Any, text: str) -> None:
        if self.validator is None:
            return
        try:
            is_legal = bool(self.validator.accepts(value))
        except Exception as error:  # code of a plugin, whose error may quote a secret
            raise ConfigError(
                f"{self.name}: {given(self.type, text)} given; its validator raised {type(error).__name__}"
            ) from error
        if not is_legal:
            raise ConfigError(f"{self.name}: {given(self.type, text)} given; expected {self.validator.expected}")
