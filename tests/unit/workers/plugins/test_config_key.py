"""One declared setting: defaults, validators and errors."""

from __future__ import annotations

from typing import Any

import pytest

from kiel_groups.errors import ConfigError
from kiel_groups.workers.plugins.config_definition import (
    REQUIRED,
    ConfigKey,
    Password,
    Validator,
    at_least,
    between,
    each,
    non_empty,
    one_of,
)

pytestmark = pytest.mark.unit


def test_a_required_setting_must_be_given() -> None:
    """Without a default, a setting that is not given is an error that says what is expected."""
    key = ConfigKey("port", "int", validator=between(1, 65535))
    assert key.required
    assert key.default is REQUIRED
    assert key.parse("80") == 80
    with pytest.raises(ConfigError, match=r"port: required, but not given; expected a whole number .* from 1 to 65535"):
        key.parse(None)


@pytest.mark.parametrize(("default", "expected"), [(5, 5), (None, None)])
def test_a_default_is_the_value_of_a_setting_that_is_not_given(default: int | None, expected: int | None) -> None:
    """The default is a typed value, and None is allowed for every type."""
    key = ConfigKey("retries", "int", default)
    assert not key.required
    assert key.parse(None) == expected
    assert key.parse("7") == 7


@pytest.mark.parametrize("default", [[], ()])
def test_a_default_list_is_not_shared(default: Any) -> None:
    """A caller that changes a default list changes only its own. The default may be a tuple, too."""
    key = ConfigKey("headers", "list", default)
    key.parse(None).append("a")
    assert key.parse(None) == []


@pytest.mark.parametrize(
    ("type_name", "default", "message"),
    [
        ("int", "5", "'5' is of the Python type str; a setting of the type int expects an int of 32 bits"),
        ("int", True, "True is of the Python type bool; a setting of the type int expects an int"),
        ("string", 5, "5 is of the Python type int; a setting of the type string expects a str"),
        ("list", "", "'' is of the Python type str; a setting of the type list expects a list or tuple of str"),
        ("list", ["a,b"], r"\['a,b'\] is of the Python type list; .* expects a list or tuple of str without commas"),
        ("password", "s3cret", r"\[hidden\] is of the Python type str; .* expects a Password, such as Password\(''\)"),
        ("boolean", 1, "1 is of the Python type int; a setting of the type boolean expects a bool"),
    ],
)
def test_a_default_of_another_type_is_refused(type_name: Any, default: Any, message: str) -> None:
    """The author of a connector notices a wrong default when the class is imported, and reads what it has to be."""
    with pytest.raises(ConfigError, match=f"x: the default {message}"):
        ConfigKey("x", type_name, default)


def test_a_default_must_be_legal() -> None:
    """A default that the validator refuses is an error, and so is a type that does not exist."""
    with pytest.raises(ConfigError, match="x: '0' given; expected at least 1"):
        ConfigKey("x", "int", 0, validator=at_least(1))
    with pytest.raises(ConfigError, match="x: there is no type 'number'; expected one of string, int"):
        ConfigKey("x", "number")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("validator", "legal", "other", "expected"),
    [
        (at_least(1), "1", "0", "x: '0' given; expected at least 1"),
        (between(1, 3), "3", "4", "x: '4' given; expected a number from 1 to 3"),
        (Validator(lambda value: value % 2 == 0, "an even number"), "2", "3", "x: '3' given; expected an even number"),
    ],
)
def test_a_validator_refuses_values(validator: Validator, legal: str, other: str, expected: str) -> None:
    """The error says what was given and what the validator expects."""
    key = ConfigKey("x", "int", validator=validator)
    assert str(key.parse(legal)) == legal
    with pytest.raises(ConfigError) as raised:
        key.parse(other)
    assert str(raised.value) == expected


def test_validators_of_texts_and_lists() -> None:
    """``one_of`` has choices; ``non_empty`` accepts no empty text, list or secret; ``each`` looks at entries."""
    assert one_of("a", "b").choices == ("a", "b")
    assert [one_of("a", "b").accepts(text) for text in ("a", "A", "")] == [True, False, False]
    assert [non_empty().accepts(value) for value in ("a", "", ["a"], [], Password("s"), Password(""))] == [
        *(True, False, True, False, True, False),
    ]
    letters = each(Validator(str.isalpha, "letters"))
    assert [letters.accepts(values) for values in ([], ["a"], ["a", "1"])] == [True, True, False]
    assert letters.expected == "entries that are each letters"


def test_an_error_does_not_show_a_secret() -> None:
    """The error about a password hides what was given."""
    key = ConfigKey("token", "password", validator=Validator(lambda secret: len(secret.value) > 8, "9 characters"))
    with pytest.raises(ConfigError) as raised:
        key.parse("s3cret")
    assert str(raised.value) == "token: [hidden] given; expected 9 characters"


def test_an_error_does_not_show_the_secrets_of_a_url() -> None:
    """The error about a URL hides user, password and parameters, also if the validator itself fails with them."""
    for refuse, reason in (
        (lambda url: False, "expected one"),
        (lambda url: int(url), "its validator raised ValueError"),
    ):
        with pytest.raises(ConfigError) as raised:
            ConfigKey("url", validator=Validator(refuse, "one")).parse("http://u:s3cret@host/?token=s3cret")
        assert str(raised.value) == f"url: 'http://[hidden]@host/?token=[hidden]' given; {reason}"
    with pytest.raises(ConfigError, match=r"port: 'http://\[hidden\]@host' given; expected a whole number"):
        ConfigKey("port", "int").parse("http://u:s3cret@host")


@pytest.mark.parametrize(
    ("argument", "value", "expected"),
    [
        ("name", 3, "the name of a setting is 3; expected a str"),
        ("documentation", None, "x: documentation is None; expected a str"),
        ("group", None, "x: group is None; expected a str"),
        ("display_name", b"X", "x: display_name is b'X'; expected a str"),
        ("importance", "urgent", "x: importance is 'urgent'; expected one of high, medium, low"),
        ("width", None, "x: width is None; expected one of none, short, medium, long"),
        ("dependents", "mode", "x: dependents is 'mode'; expected a tuple of str"),
        ("dependents", (1,), r"x: dependents is \(1,\); expected a tuple of str"),
        ("validator", str.islower, "x: validator is <method .*>; expected a Validator or None"),
    ],
)
def test_an_argument_of_another_type_is_refused(argument: str, value: Any, expected: str) -> None:
    """The author of a connector notices it when the class is imported, not when a user asks for the settings."""
    arguments: dict[str, Any] = {"name": "x", argument: value}
    with pytest.raises(ConfigError, match=f"^{expected}$"):
        ConfigKey(**arguments)


def test_a_validator_describes_legal_values_by_texts() -> None:
    """Users read the description, and the choices."""
    expected: Any = None
    with pytest.raises(ConfigError, match="the legal values of a validator are of the type NoneType; expected a str"):
        Validator(bool, expected)
    choices: Any = (1, 2)
    with pytest.raises(ConfigError, match=r"the choices of a validator are \(1, 2\); expected a tuple of str"):
        one_of(*choices)


def test_a_validator_whose_answer_has_no_truth_is_an_error() -> None:
    """An answer of a validator may be an array."""

    class Truthless:
        def __bool__(self) -> bool:
            raise ValueError("ambiguous")

    answers: Any = lambda value: Truthless()  # noqa: E731
    with pytest.raises(ConfigError, match="x: 'a' given; its validator raised ValueError"):
        ConfigKey("x", validator=Validator(answers, "a text")).parse("a")
