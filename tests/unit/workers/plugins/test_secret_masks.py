"""Secrets are hidden, and come back with a configuration that a user has read."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from kiel_groups.errors import ConfigError
from kiel_groups.workers.plugins.config_definition import ConfigDefinition, ConfigKey
from kiel_groups.workers.plugins.connector_checks import masked, secret_values, with_secrets

pytestmark = pytest.mark.unit

DEFINITION = ConfigDefinition(ConfigKey("url"), ConfigKey("login", "password"), ConfigKey("token.lifetime", "int"))


def test_declared_passwords_are_hidden() -> None:
    """Settings of the type password are hidden, and no other declared setting is, whatever its name."""
    config = {"name": "c", "url": "u", "login": "s3cret", "token.lifetime": "5"}
    assert masked(config, DEFINITION) == {**config, "login": "[hidden]"}


@pytest.mark.parametrize("name", ["logn", "db_password", "API.KEY", "access-token", "api_key", "Authorization"])
def test_what_may_be_a_mistyped_secret_is_hidden(name: str) -> None:
    """A setting that is not declared is hidden if its name resembles a password's, or sounds like a secret."""
    assert masked({name: "s3cret"}, DEFINITION) == {name: "[hidden]"}


def test_without_a_definition_only_standard_settings_are_shown() -> None:
    """If the class of a connector cannot be imported, every setting of its own may be a secret."""
    config = {"name": "c", "topics": "t", "url": "u"}
    assert masked(config, None) == {"name": "c", "topics": "t", "url": "[hidden]"}
    assert masked({**config, "other": "x"}, DEFINITION) == {**config, "other": "x"}


def test_a_hidden_text_that_comes_back_means_the_stored_one() -> None:
    """A user may read a configuration, change a part, and write it back: secrets stay."""
    stored = {"url": "u", "login": "s3cret"}
    assert with_secrets({**masked(stored, DEFINITION), "url": "v"}, stored) == {"url": "v", "login": "s3cret"}
    assert with_secrets({"login": "new"}, stored) == {"login": "new"}


def test_a_text_that_is_shown_in_part_may_come_back() -> None:
    """A URL that is written back as it is shown keeps its secrets, and ``[hidden]`` alone keeps it as well."""
    stored = {"url": "http://u:s3cret@host/?token=s3cret"}
    shown = masked(stored, DEFINITION)
    assert shown == {"url": "http://[hidden]@host/?token=[hidden]"}
    assert with_secrets(shown, stored) == with_secrets({"url": "[hidden]"}, stored) == stored


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"login": "[hidden]"}, r"login: \[hidden\] given, which means the stored value, but none is stored"),
        ({"url": "http://[hidden]@other/"}, r"url: \[hidden\] given within a changed text; give the text with its"),
    ],
)
def test_a_hidden_text_without_a_stored_one_is_refused(given: Mapping[str, str], message: str) -> None:
    """The worker does not know the secret: none is stored, or the user has changed what is around it."""
    with pytest.raises(ConfigError, match=message):
        with_secrets(given, {"url": "http://u:s3cret@host/"})


def test_the_values_of_secrets_are_those_that_answers_hide() -> None:
    """Short texts that no connector declares as passwords may be anything: all that has them would be hidden."""
    config = {
        "name": "cccc",
        "url": "u_u_u",
        "login": "l",
        "api.key": "k3y-",
        "auth": "none",
        "pwd": "abc",
        "other": "o_o_o",
    }
    assert secret_values(config, DEFINITION) == {"l", "k3y-"}
    assert masked(config, DEFINITION)["login"] == masked(config, DEFINITION)["api.key"] == "[hidden]"
