"""Texts become typed values, and what is no value of its type is refused with an explanation."""

from __future__ import annotations

import pickle
from decimal import Decimal

import pytest

from kiel_groups.errors import ConfigError
from kiel_groups.workers.plugins.config_definition import TYPES, Password, TypeName, given, parsed

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    ("type_name", "text", "value"),
    [
        ("string", "  a text ", "a text"),
        ("string", "", ""),
        ("int", "2147483647", 2147483647),
        ("int", " -7 ", -7),
        ("long", "-9223372036854775808", -(1 << 63)),
        ("double", "1e3", 1000.0),
        ("double", "5", 5.0),
        ("boolean", "TRUE", True),
        ("boolean", "false", False),
        ("list", "a, b ,c", ["a", "b", "c"]),
        ("list", "", []),
        ("password", "s3cret", Password("s3cret")),
        ("class", "decimal:Decimal", Decimal),
        ("class", "decimal.Decimal", Decimal),
    ],
)
def test_a_text_becomes_a_value(type_name: TypeName, text: str, value: object) -> None:
    """A text becomes a value of the type, without blanks around it."""
    assert parsed(type_name, text) == value


@pytest.mark.parametrize(
    ("type_name", "text", "expected"),
    [
        ("int", "2147483648", "'2147483648' given; expected a whole number of 32 bits"),
        ("int", "1_000", "'1_000' given"),
        ("int", "1.0", "'1.0' given"),
        ("int", "", "'' given"),
        ("int", "٣", "given; expected a whole number"),
        ("int", "9" * 10_000, "expected a whole number"),
        ("long", "9223372036854775808", "expected a whole number of 64 bits"),
        ("double", "nan", "expected a number"),
        ("double", "1_0", "expected a number"),
        ("boolean", "yes", "'yes' given; expected 'true' or 'false'"),
        ("class", "decimal:Nothing", "has no class 'Nothing'"),
    ],
)
def test_a_text_of_another_type_is_refused(type_name: TypeName, text: str, expected: str) -> None:
    """The error says what was given, at most 100 characters of it, and what is expected."""
    with pytest.raises(ConfigError) as raised:
        parsed(type_name, text)
    assert expected in str(raised.value)
    assert len(str(raised.value)) < 200


@pytest.mark.parametrize("type_name", TYPES)
def test_values_can_be_written_as_texts(type_name: TypeName) -> None:
    """A value that is written as a text and parsed again is the same value. Passwords are hidden."""
    text = {"int": "5", "long": "5", "double": "0.5", "boolean": "true", "list": "a,b", "class": "decimal.Decimal"}
    value = parsed(type_name, text.get(type_name, "a text"))
    assert TYPES[type_name].accepts(value)
    written = TYPES[type_name].text(value)
    assert written == "[hidden]" if type_name == "password" else parsed(type_name, written) == value


def test_a_password_does_not_show_itself() -> None:
    """Neither the text forms of a password nor an error has its value; it can be compared and pickled."""
    secret = Password("s3cret")
    assert "s3cret" not in f"{secret} {secret!r} {secret!s} {[secret]}"
    assert given("password", "s3cret") == "[hidden]"
    assert pickle.loads(pickle.dumps(secret)) == secret
    assert secret != Password("other")
    assert len({secret, Password("s3cret")}) == 1
