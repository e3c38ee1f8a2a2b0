"""The scan for secrets finds each form of a secret, so that a test that finds none means something."""

from __future__ import annotations

import base64
from collections.abc import Callable
from pathlib import Path
from urllib.parse import quote

import pytest

from tests.helpers.secret_scan import SecretScan

pytestmark = pytest.mark.unit

SECRET = "sësame/opens+the?door"


@pytest.mark.parametrize("before", range(4))
@pytest.mark.parametrize("after", range(3))
@pytest.mark.parametrize("encode", [base64.b64encode, base64.urlsafe_b64encode])
def test_a_secret_within_base64_is_found(before: int, after: int, encode: Callable[[bytes], bytes]) -> None:
    """What precedes and follows it changes its text."""
    scan = SecretScan(password=SECRET)
    scan.look_at("the answer", encode(b"u" * before + SECRET.encode() + b"\xff" * after))
    assert scan.found == ["password in the answer"]


def test_files_are_searched_besides_those_that_have_secrets(tmp_path: Path) -> None:
    """A quoted secret counts, a part of it does not, and a file may have the secrets that are ignored."""
    (tmp_path / "kept").mkdir()
    for name, text in (("log", quote(SECRET)), ("part", SECRET[:-1]), ("kept/jaas.conf", SECRET), ("data", SECRET)):
        (tmp_path / name).write_text(text, encoding="utf-8")
    scan = SecretScan(password=SECRET, other="another secret")
    assert scan.look_into(tmp_path, besides=[tmp_path / "kept", tmp_path / "log"], ignoring=["password"]) == 2
    assert scan.found == []
    assert scan.look_into(tmp_path, besides=[tmp_path / "kept"]) == 3
    assert scan.found == [f"password in {tmp_path / name}" for name in ("data", "log")]
