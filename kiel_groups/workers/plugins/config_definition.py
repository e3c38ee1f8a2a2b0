"""Declare the settings of a connector, and check the settings that users give."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from enum import Enum
from functools import lru_cache
from importlib import import_module
from itertools import islice
from typing import Any, Final, Literal, TypeAlias, get_args

from kiel_groups.errors import ConfigError
from kiel_groups.secret_texts import HIDDEN, error_texts, without_secrets


def full_name(cls: type) -> str:
    """Return the name by which ``load_class`` finds a class that is defined at the top of a module."""
    return f"{cls.__module__}.{cls.__qualname__}"


def load_class(name: str) -> type:
    """
    Import a class, and return it.

    Args:
        name: ``module:Class``, or the dotted name of the class.

    Raises:
        ConfigError: ``name`` has another form, the module cannot be imported, or the module has no such class. The
            message contains the error of the import.
    """
    module_name, colon, class_name = name.partition(":")
    if not colon:
        module_name, _, class_name = name.rpartition(".")
    if not module_name or not all(part.isidentifier() for part in (*module_name.split("."), *class_name.split("."))):
        raise ConfigError(f"{name!r} is not the name of a class; expected 'module:Class' or 'package.module.Class'")
    try:
        found: object = import_module(module_name)
        # The module may have a ``__getattr__`` of its own, which imports more.
        for part in class_name.split("."):
            found = getattr(found, part, None)
    except KeyboardInterrupt:
        raise
    # A module may raise anything when it is imported, and may even exit. Errors of test frameworks and of extensions in
    # Rust are no ``Exception``.
    except BaseException as error:
        text = error_texts(error).summary
        raise ConfigError(f"{name!r}: cannot import {module_name!r}: {type(error).__name__}: {text}") from error
    if not isinstance(found, type):
        raise ConfigError(f"{name!r}: the module {module_name!r} has no class {class_name!r}")
    return found


@dataclass(frozen=True, slots=True)
class Validator:
    """
    A test of a typed value, such as ``Validator(str.islower, "lower-case letters")``.

    Args:
        accepts: Returns whether a value is legal.
        expected: The legal values in words. Errors contain these words after "expected".
        choices: All legal values as texts, if there are few. Users see these texts as recommended values.

    Raises:
        ConfigError: ``expected`` is no text, or ``choices`` are no texts.
    """

    accepts: Callable[[Any], bool]
    expected: str
    choices: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        expected: object = self.expected
        if not isinstance(expected, str):
            raise ConfigError(
                f"the legal values of a validator are of the type {type(expected).__name__}; expected a str"
            )
        if not (isinstance(self.choices, list | tuple) and all(isinstance(choice, str) for choice in self.choices)):
            raise ConfigError(f"the choices of a validator are {self.choices!r}; expected a tuple of str")


def at_least(least: float) -> Validator:
    """Return a validator that accepts numbers from ``least`` on."""
    return Validator(lambda value: bool(value >= least), f"at least {least}")


def between(least: float, most: float) -> Validator:
    """Return a validator that accepts numbers from ``least`` to ``most``, including these two numbers."""
    return Validator(lambda value: bool(least <= value <= most), f"a number from {least} to {most}")


def one_of(*choices: str) -> Validator:
    """Return a validator that accepts only these texts."""
    return Validator(lambda value: value in choices, f"one of {', '.join(map(str, choices))}", choices)


def non_empty() -> Validator:
    """Return a validator that accepts texts, secrets and lists that are not empty."""
    return Validator(lambda value: bool(getattr(value, "value", value)), "a value that is not empty")


def each(validator: Validator) -> Validator:
    """Return a validator that accepts a list if ``validator`` accepts all its entries."""
    return Validator(lambda values: all(map(validator.accepts, values)), f"entries that are each {validator.expected}")


TypeName: TypeAlias = Literal["string", "int", "long", "double", "boolean", "list", "password", "class"]

_WHOLE_NUMBER = re.compile(r"[+-]?[0-9]+", re.ASCII)


class Password:
    """
    A secret text. Logs, errors and ``str`` show ``[hidden]``.

    Args:
        value: The text itself.
    """

    __slots__ = ("value",)

    def __init__(self, value: str) -> None:
        self.value = value

    def __str__(self) -> str:
        return HIDDEN

    def __repr__(self) -> str:
        return HIDDEN

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Password) and self.value == other.value

    def __hash__(self) -> int:
        return hash(self.value)


@dataclass(frozen=True, slots=True)
class TypeRules:
    """
    The rules of a type of settings.

    ``expected`` describes the values to users, and ``python`` describes the values to authors of connectors. ``parse``
    converts a user's text. For a text that is not of the type, ``parse`` raises ``ValueError``, ``KeyError`` or a
    ``ConfigError`` with the reason. ``accepts`` returns whether a default is of the type. ``text`` converts a value to
    the text that users see.
    """

    expected: str
    python: str
    parse: Callable[[str], Any]
    accepts: Callable[[Any], bool]
    text: Callable[[Any], str] = str


def _whole_number(bits: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        # ``int`` alone would also accept underscores.
        if not _WHOLE_NUMBER.fullmatch(text) or not _is_whole(bits)(int(text[:30])):
            raise ValueError(text)
        return int(text)

    return parse


def _is_whole(bits: int) -> Callable[[Any], bool]:
    limit = 1 << (bits - 1)
    return lambda value: type(value) is int and -limit <= value < limit


def _number(text: str) -> float:
    value = float(text)
    if not math.isfinite(value) or "_" in text:
        raise ValueError(text)
    return value


def _boolean(text: str) -> bool:
    return {"true": True, "false": False}[text.lower()]


def _list(text: str) -> list[str]:
    return [part.strip() for part in text.split(",")] if text else []


def _is_list(value: Any) -> bool:
    return isinstance(value, list | tuple) and all(isinstance(part, str) and "," not in part for part in value)


TYPES: Mapping[TypeName, TypeRules] = {
    "string": TypeRules("a text", "a str", str, lambda value: isinstance(value, str)),
    "int": TypeRules("a whole number of 32 bits", "an int of 32 bits", _whole_number(32), _is_whole(32)),
    "long": TypeRules("a whole number of 64 bits", "an int of 64 bits", _whole_number(64), _is_whole(64)),
    "double": TypeRules(
        "a number",
        "a finite float or int",
        _number,
        lambda value: type(value) in (int, float) and math.isfinite(value),
    ),
    "boolean": TypeRules(
        "'true' or 'false'",
        "a bool",
        _boolean,
        lambda value: isinstance(value, bool),
        lambda value: str(value).lower(),
    ),
    "list": TypeRules(
        "texts that are separated by commas", "a list or tuple of str without commas", _list, _is_list, ",".join
    ),
    "password": TypeRules(
        "a secret text", "a Password, such as Password('')", Password, lambda value: isinstance(value, Password)
    ),
    "class": TypeRules("the name of a class", "a class", load_class, lambda value: isinstance(value, type), full_name),
}


def parsed(type_name: TypeName, text: str) -> Any:
    """
    Convert a setting's text to its typed value. Blanks around the text are ignored.

    Raises:
        ConfigError: The text is not of the type. The message has the given text, without secrets, and the expected
            values.
    """
    text = text.strip()
    try:
        return TYPES[type_name].parse(text)
    except ConfigError:
        raise
    except (ValueError, KeyError):
        raise ConfigError(f"{given(type_name, text)} given; expected {TYPES[type_name].expected}") from None


def given(type_name: TypeName, text: str) -> str:
    """Return the text of a setting as an error may show it: quoted, cut to 100 characters, and without secrets."""
    if type_name == "password":
        return HIDDEN
    text = without_secrets(text)
    return repr(text) if len(text) <= 100 else f"{text[:100]!r}..."


Importance: TypeAlias = Literal["high", "medium", "low"]
Width: TypeAlias = Literal["none", "short", "medium", "long"]


class _Required(Enum):
    REQUIRED = "required"


#: The value of ``default`` for a setting without a default: users must give a value.
REQUIRED: Final = _Required.REQUIRED


@dataclass(frozen=True, slots=True)
class ConfigKey:
    """
    One setting, as a connector declares it.

    Args:
        name: The name, in Kafka's style: words in lower case, separated by dots. Durations end in ``.ms``.
        type: The type of the value. Settings are given as texts.
        default: The typed value if the user gives no value, such as a list for the type ``list``, or a ``Password``.
            None is allowed for every type. Without a default, users must give a value.
        documentation: What the setting does, in whole sentences.
        importance: How much attention the setting needs from users.
        validator: Tests which values of the type are legal; None accepts all values of the type.
        group: The heading under which tools show the setting.
        display_name: The name that tools show; by default, ``name``.
        width: The width of the field in which tools show the value.
        dependents: The names of the settings that depend on this setting's value.

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
        """Check the types of the arguments that users see. A wrong type would fail later, in an answer to a user."""
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
        Return the typed value of a setting, or the default.

        Args:
            text: The text that the user has given; None if the user has not given the setting.

        Raises:
            ConfigError: The setting is required and was not given, or the value is not legal. The error names the
                setting, the given text, and the expected values.
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
        """Return a typed value as users see it, with secrets hidden; None for None and for ``REQUIRED``."""
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


#: Settings as a connector gets them: typed values by name. Settings that are not declared are texts, as given.
Settings: TypeAlias = Mapping[str, Any]


#: How much a misspelt name resembles the declared one, from 0 to 1: ``flie`` is 0.75 like ``file``. Settings that Kafka
#: Connect has, and workers do not, such as ``tasks.max.enforce``, are 0.7 at most.
_MISTYPED = 0.72


@dataclass(frozen=True, slots=True)
class CheckedConfig:
    """
    The outcome of a check of settings.

    Args:
        values: The typed values of legal settings (or their defaults), and the texts of undeclared settings.
        errors: The errors, by the setting's name. Each text names the setting.
        warnings: A text for each given setting that is not declared, with the most similar declared name if known.
        mistyped: The declared name that is probably meant, by the misspelt name that the user has given.
    """

    values: Settings
    errors: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()
    mistyped: Mapping[str, str] = field(default_factory=dict)

    @property
    def settings(self) -> Settings:
        """
        The values of settings without errors.

        Raises:
            ConfigError: There are errors. The message has all errors and warnings: a setting is often missing because
                its name is mistyped.
        """
        if self.errors:
            errors = [text for texts in self.errors.values() for text in texts]
            raise ConfigError("; ".join([*errors, *self.warnings]))
        return self.values


#: The most characters of a name that is compared with declared names, and the most names that one check compares: users
#: may give ten thousand unknown settings.
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
        keys: The settings, with different names.

    Raises:
        ConfigError: Two settings have the same name, or a setting is not a ``ConfigKey``.
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
        Return a definition with the settings of the two definitions.

        Raises:
            ConfigError: The two definitions declare the same setting.
        """
        return ConfigDefinition(*self, *other)

    @property
    def groups(self) -> list[str]:
        """The headings of the settings, without duplicates, in the order of their first settings."""
        return list(dict.fromkeys(key.group for key in self))

    def check(self, config: Mapping[str, str | None]) -> CheckedConfig:
        """
        Check the settings that a user has given, without raising an error. A value of None means "not given".

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
        Check the settings that a user has given, and return their typed values.

        Raises:
            ConfigError: A setting is missing or not legal. The message has all errors.
        """
        return self.check(config).settings

    def nearest(self, name: str, least: float = 0.6) -> str | None:
        """Return the declared name most similar to ``name``, or None if no similarity reaches ``least`` (0 to 1)."""
        return _nearest(name, tuple(self._keys), least)

    def _unknown(self, name: str, *, near: bool) -> str:
        nearest = self.nearest(name) if near else None
        return f"{name}: there is no such setting{f'; did you mean {nearest!r}?' if nearest else ''}"
