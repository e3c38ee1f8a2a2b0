"""Secrets are recognised by the names of settings, and within texts such as URLs."""

from __future__ import annotations

import json
from urllib.parse import quote, quote_plus

import pytest

from kiel_groups.secret_texts import (
    LONGEST_TEXT,
    error_texts,
    may_be_secret,
    quoted_forms,
    without_secrets,
)

pytestmark = pytest.mark.unit

#: A password with what Python, JSON and URLs escape.
SECRET = "d'0/ ü\\ s3cret"


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


@pytest.mark.parametrize(
    "text", ["user=u password='x'", '{"password": "x"}', "Org required token_value=x;", "Uid=u;Pwd=x", "account key: x"]
)
def test_a_text_may_name_a_secret(text: str) -> None:
    """Such a text may be a secret, whatever the name of its setting is."""
    assert may_be_secret("options", text)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("http://u:S3CRET@host:80/p", "http://[hidden]@host:80/p"),
        ("http://S3CRET@host/p", "http://[hidden]@host/p"),
        ("http://u:a/S3CRET@b@host/p", "http://[hidden]@host/p"),
        ("http://u:12/S3CRET@host/", "http://[hidden]@host/"),
        ("http://u:12/S3 CRET@host/", "http://[hidden]@host/"),
        ("http://u:12 S3CRET@b#c?d@host/ and more", "http://[hidden]@host/ and more"),
        ("http://me@corp:S3CRET@host", "http://[hidden]@host"),
        ("http://x-token:S3CRET@host", "http://[hidden]@host"),
        ("http://h/u:S3CRET@host", "http://h/[hidden]@host"),
        ("http://h/p and u:S3CRET@host", "http://h/p and [hidden]@host"),
        ("http://host/p?token=S3CRET&x=S3CRET#S3CRET", "http://host/p?token=[hidden]&x=[hidden]#[hidden]"),
        ("http://host/p?S3CRET", "http://host/p?[hidden]"),
        ("http://host/p?a=S3CRET failed", "http://host/p?a=[hidden] failed"),
        ("http://host/p?token=", "http://host/p?token="),
        ("jdbc:sqlserver://host:1;user=u;password=S3CRET", "jdbc:sqlserver://host:1;user=[hidden];password=[hidden]"),
        ("http://h1:1/p,http://u:S3CRET@h2 and more", "http://h1:1/p,http://[hidden]@h2 and more"),
        ("http://u:S3 CRET@h1/p, jdbc:mysql://u:S3CRET@h2", "http://[hidden]@h1/p, jdbc:mysql://[hidden]@h2"),
        ("amqp://u:S3CRET@h1:1,h2:2/x", "amqp://[hidden]@h1:1,h2:2/x"),
        ("failed: /p?a=1&token=S3CRET (refused)", "failed: /p?a=1&token=[hidden] (refused)"),
    ],
)
def test_the_secrets_of_urls_are_hidden(text: str, shown: str) -> None:
    """Users, passwords and parameters are hidden, and what is shown stays as it is if it is shown again."""
    assert without_secrets(text) == shown
    assert without_secrets(shown) == shown


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("u:S3CRET@host", "[hidden]@host"),
        ("http:/u:S3CRET@host", "[hidden]@host"),
        ("h:1/p,u:S3/CRET@tcp(h:3306)/db", "[hidden]@tcp(h:3306)/db"),
        ("me:/S3@CRET@tcp(h:3306)/db", "[hidden]@tcp(h:3306)/db"),
        ("C:/dir/u:S3CRET@host", "C:/dir/[hidden]@host"),
        ("u:S3CRET@h,http://host:1/p", "[hidden]@h,http://host:1/p"),
        ("scott/S3CRET@//db:1521/x", "[hidden]@//db:1521/x"),
        ("scott/S3/C:RET@db:1521:x", "[hidden]@db:1521:x"),
        ("scott/S3CRET@(DESCRIPTION=(HOST=db))", "[hidden]@(DESCRIPTION=(HOST=db))"),
        ("jdbc:oracle:thin:scott/S3CRET@db", "[hidden]@db"),
        ("jdbc:mysql://h/db?user=S3CRET&password=S3CRET", "jdbc:mysql://h/db?user=[hidden]&password=[hidden]"),
        ("jdbc:sqlserver://h:1;password=S3@S3 CRET;x=y", "jdbc:sqlserver://h:1;password=[hidden];x=[hidden]"),
        ("Server=tcp:h,1433;Uid=sa;Pwd=S3;CRET;", "Server=tcp:h,1433;Uid=sa;Pwd=[hidden];"),
        ("Pwd={S3;CRET=S3};Database=d", "Pwd=[hidden];Database=d"),
        ('Password = "S3;CRET=S3" ; Database=d', "Password = [hidden] ; Database=d"),
        ("AccountName=n;AccountKey=S3CRET==;EndpointSuffix=x", "AccountName=n;AccountKey=[hidden];EndpointSuffix=x"),
        ("SharedAccessKeyName=n;SharedAccessKey=S3CRET=", "SharedAccessKeyName=n;SharedAccessKey=[hidden]"),
        ("SharedAccessSignature=sv=1&sig=S3CRET", "SharedAccessSignature=[hidden]"),
        ("host=h password=S3 CRET\nnext line", "host=h password=[hidden]\nnext line"),
        ("password=\nnext line", "password=\nnext line"),
        (r"{'password': 'S3\'CRET', 'user': 'u'}", "{'password': [hidden], 'user': 'u'}"),
        (r'"{\"token\": \"S3CRET\"}"', r'"{\"token\": [hidden]'),
    ],
)
def test_the_secrets_of_connection_strings_are_hidden(text: str, shown: str) -> None:
    """Users and passwords without a scheme are hidden, and values that the text itself names as secrets."""
    assert without_secrets(text) == shown
    assert without_secrets(shown) == shown


@pytest.mark.parametrize(
    "text",
    [
        "a/b@c",
        "me@example.com at 12:30",
        "mailto:me@example.com",
        "/var/lib/x@y:12",
        "dir/icon@2x.png:12",
        r"C:\dir\a@b",
        "c:/dir/a@b",
        "file:/dir/a@b",
        "s3://bucket/key@1",
        "http://host/p@v1",
        "http://[::1]:80/p",
        "1@h1:9093,2@h2:9093",
        "h1:2181,h2:2181/chroot",
        "^(?:a|b)@x$",
        "[^:]+@.+",
        "[[:alpha:]]+@x",
        "a?b=c, d&e",
        "key=value;bypass=1;design=2",
        "db.password: no value given",
        'File "/dir/x.py", line 3, in f',
    ],
)
def test_other_texts_are_shown(text: str) -> None:
    """Paths, addresses, times, lists of hosts and regular expressions stay as they are."""
    assert without_secrets(text) == text


def test_what_may_be_a_password_is_hidden() -> None:
    """What looks like a port may be the start of a password: the text up to the last "@" is hidden."""
    assert without_secrets("http://host:80/p@v1") == "http://[hidden]@v1"


def test_a_long_text_is_hidden_as_a_whole() -> None:
    """The search of a megabyte would hold up all threads for half a second."""
    assert without_secrets("x" * LONGEST_TEXT) == "x" * LONGEST_TEXT
    assert without_secrets("x" * (LONGEST_TEXT + 1)) == "[hidden]"
    assert may_be_secret("options", "x" * (LONGEST_TEXT + 1))


def test_given_secrets_are_hidden_in_one_pass() -> None:
    """A secret may be a part of another one, overlap with it, or be a part of what is shown in its place."""
    assert (
        without_secrets("x abcd, bc, cdab; h", ["bc", "abcd", "dab", "h"])
        == "x [hidden], [hidden], c[hidden]; [hidden]"
    )
    assert without_secrets("abc xabcdx", ["abc", "bcd"]) == "[hidden] x[hidden]x"
    assert without_secrets("e" * 99, "hiden[]") == "[hidden]" * 99


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("as it is: d'0/ ü\\ s3cret.", "as it is: [hidden]."),
        (f"{SECRET!r} and {[SECRET]}", '"[hidden]" and ["[hidden]"]'),
        (repr(f'user "u" has {SECRET}'), """'user "u" has [hidden]'"""),
        (f"{SECRET.encode()!r}.", 'b"[hidden]".'),
        (json.dumps({"x": SECRET}), '{"x": "[hidden]"}'),
        (f"/x/{quote(SECRET, safe='')} {quote(SECRET)} y={quote_plus(SECRET)}", "/x/[hidden] [hidden] y=[hidden]"),
        ("-----BEGIN KEY----- is no line", "[hidden] is no line"),
        ("MIIEvQIB is one, too", "[hidden] is one, too"),
    ],
)
def test_errors_quote_secrets_in_many_forms(text: str, shown: str) -> None:
    """With escapes, encoded for URLs, with blanks around it, and one line of several."""
    assert (
        without_secrets(text, quoted_forms(f" {SECRET}\n") | quoted_forms("-----BEGIN KEY-----\nMIIEvQIB\n")) == shown
    )


def failed(error: Exception, cause: Exception | None = None) -> Exception:
    """Return an error that was raised, with its cause."""
    with pytest.raises(type(error)) as raised:
        raise error from cause
    return raised.value


def test_the_texts_of_an_error_have_no_secrets() -> None:
    """Neither the error nor its causes and notes show one."""
    cause = failed(KeyError("s3cret"))
    error = failed(OSError("no http://u:p4ss@h/ for s3cret"), cause)
    error.add_note("it was s3cret")
    texts = error_texts(error, ["s3cret"])
    assert texts.summary == "no http://[hidden]@h/ for [hidden]"
    assert texts.trace.endswith("OSError: no http://[hidden]@h/ for [hidden]\nit was [hidden]\n")
    assert "KeyError: '[hidden]'\n" in texts.trace
    assert not {"s3cret", "p4ss"} & set(texts.trace.split())


def test_the_texts_of_an_error_are_bounded() -> None:
    """Of a long text, the start is shown. If it is too long to be searched for secrets, all of it is left out."""
    texts = error_texts(failed(OSError("no s3cret" + "x" * 50_000)), ["s3cret"])
    assert texts.summary == f"no [hidden]{'x' * 1_989}... and 48,011 more characters"
    assert texts.trace.endswith(f"OSError: no [hidden]{'x' * 1_980}... and 48,021 more characters\n")
    error = failed(ValueError("first", "x" * 1_000_000), failed(KeyError("y" * 1_000_000)))
    texts = error_texts(error)
    assert texts.summary == "ValueError: a text of 1,000,025 characters, which is left out"
    assert texts.trace.endswith("\nValueError: a text of 1,000,026 characters, which is left out\n")
    assert "\nKeyError: a text of 1,000,013 characters, which is left out\n" in texts.trace
    many = error_texts(ExceptionGroup("many", [ValueError("z" * 9_000)] * 99))
    assert len(many.trace) < 40_000


def test_an_error_without_a_text_has_its_type() -> None:
    """So a log line is never empty. An error may even fail to make its text."""

    class OddError(Exception):
        def __str__(self) -> str:
            raise ValueError("s3cret")

    assert error_texts(TimeoutError()).summary == "TimeoutError"
    assert error_texts(OddError()).summary == "OddError, whose text cannot be made: ValueError"
