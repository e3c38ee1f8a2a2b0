"""Secrets are recognised by the names of settings, and within texts such as URLs."""

from __future__ import annotations

import time

import pytest

from kiel_groups.workers.plugins.secret_texts import may_be_secret, without_secrets

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    "name",
    [
        "db_password",
        "API.KEY",
        "access-token",
        "sasl.jaas.config",
        "aws.access.key.id",
        "awsAccessKeyId",
        "ssl.key.passphrase",
        "http.headers",
        "proxy.auth",
        "key.password",
        "license.key",
    ],
)
def test_a_name_may_be_that_of_a_secret(name: str) -> None:
    """Names have telltale parts in any case, with any separator."""
    assert may_be_secret(name, "x")


@pytest.mark.parametrize("name", ["key.converter", "author", "monkey.count", "batch.size", "passive"])
def test_a_name_may_say_nothing(name: str) -> None:
    """Short telltales count as whole words only, and the keys of records are no secrets."""
    assert not may_be_secret(name, "x")


@pytest.mark.parametrize("text", ["user=u password='x'", '{"password": "x"}', "Org required token_value=x;"])
def test_a_text_may_name_a_secret(text: str) -> None:
    """Such a text may be a secret, whatever the name of its setting is."""
    assert may_be_secret("options", text)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("http://u:S3CRET@host:80/p", "http://[hidden]@host:80/p"),
        ("http://S3CRET@host/p", "http://[hidden]@host/p"),
        ("http://u:a/S3CRET@b@host/p", "http://[hidden]@host/p"),
        ("http://host:80/p@v1", "http://host:80/p@v1"),
        ("http:/u:S3CRET@host", "http:/[hidden]@host"),
        ("u:S3CRET@host", "[hidden]@host"),
        ("http://host/p?token=S3CRET&x=S3CRET#S3CRET", "http://host/p?token=[hidden]&x=[hidden]#[hidden]"),
        ("http://host/p?S3CRET", "http://host/p?[hidden]"),
        ("http://host/p?token=", "http://host/p?token="),
        ("jdbc:sqlserver://host:1;user=u;password=S3CRET", "jdbc:sqlserver://host:1;user=[hidden];password=[hidden]"),
        ("http://h1:1/p,http://u:S3CRET@h2 and more", "http://h1:1/p,http://[hidden]@h2 and more"),
        ("amqp://u:S3CRET@h1:1,h2:2/x", "amqp://[hidden]@h1:1,h2:2/x"),
        ("a?b=c, d&e", "a?b=c, d&e"),
        ("me@example.com at 12:30", "me@example.com at 12:30"),
    ],
)
def test_the_secrets_of_urls_are_hidden(text: str, shown: str) -> None:
    """Users, passwords and parameters are hidden, and what is shown stays as it is if it is shown again."""
    assert without_secrets(text) == shown
    assert without_secrets(shown) == shown


@pytest.mark.parametrize("text", ["f" * 1_000_000, "a:" * 500_000, "token" * 200_000, "x://" + "a:?" * 300_000])
def test_a_long_text_is_searched_quickly(text: str) -> None:
    """The time grows with the length, not with its square, which would be hours."""
    start_s = time.process_time()
    without_secrets(text)
    may_be_secret("options", text)
    assert time.process_time() - start_s < 10
