"""Laws of the texts that are shown in place of those with secrets."""

from __future__ import annotations

import json
import re
from urllib.parse import quote

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from kiel_groups.secret_texts import error_texts, quoted_forms, without_secrets

pytestmark = pytest.mark.property

#: Any characters, and many of those that have a meaning in URLs and connection strings. A password has one line.
passwords = st.text(st.characters(exclude_characters="\n", exclude_categories=["Cs"]), min_size=1) | st.text(
    "0123456789ab:/@?#&;=, '\"()[]{}\\%", min_size=1, max_size=30
)


@given(passwords, st.booleans(), st.sampled_from(["http", "jdbc:mysql", "mongodb+srv"]))
def test_the_password_of_a_url_is_never_shown(password: str, is_encoded: bool, scheme: str) -> None:
    """No part of a password is shown, whether it is percent-encoded or not. What is around it is shown."""
    assume(not re.search(r"\W\w[^/]*://", password))  # A password with a URL in it may be shown in part.
    secret = quote(password, safe="") if is_encoded else password
    shown = without_secrets(f"cannot reach {scheme}://user:{secret}@host.example:80/path: refused\n")
    assert shown == f"cannot reach {scheme}://[hidden]@host.example:80/path: refused\n"


@given(st.text("u0/@:", max_size=9), st.text("s0:/@,(?", max_size=12), st.sampled_from(["@tcp(h:1)/d", "@//h/d"]))
def test_the_password_of_a_connection_string_is_never_shown(start: str, end: str, host: str) -> None:
    """All of a password without blanks is hidden, whatever separators it has."""
    assume("://" not in start + "x" + end)
    assert "SECRET" not in without_secrets(f"user:x{start}SECRET{end}{host}")


@given(passwords, st.sampled_from(["Server=h;Uid=u;Pwd=", "AccountName=n;AccountKey=", "host=h user=u password="]))
def test_a_named_secret_is_never_shown(secret: str, start: str) -> None:
    """A value that a text gives the name of a secret is hidden up to the next ";" or the end of the line."""
    assume(secret.strip() == secret and secret[0] not in "\"'{" and ";" not in secret)
    assert without_secrets(f"{start}{secret};") == f"{start}[hidden];"


@given(st.text(max_size=20), st.text(max_size=20), st.text(max_size=20))
def test_a_given_secret_is_never_shown(start: str, end: str, around: str) -> None:
    """An error may quote it in any form, between any texts, and may have a cause that quotes it, too."""
    secret = f"{start}S3CRET{end}"
    error = OSError(f"{around}{secret}{around}{secret!r}{json.dumps(secret)}{quote(secret, errors='replace')}")
    error.__cause__ = KeyError(secret)
    texts = error_texts(error, quoted_forms(secret))
    assert "S3CRET" not in texts.summary + texts.trace


@given(st.text("u:/@?&;=# ,'\"pwd[]{}\n", max_size=40))
def test_what_is_shown_stays_as_it_is(text: str) -> None:
    """A text without secrets has none to hide: what is shown may be written back, and is recognised then."""
    shown = without_secrets(text)
    assert without_secrets(shown) == shown
