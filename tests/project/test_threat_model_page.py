"""The page of the threat model names a test for each promise, and these tests exist."""

from __future__ import annotations

import re

import pytest

from tests.helpers.commands import REPOSITORY

pytestmark = pytest.mark.unit

PAGE = (REPOSITORY / "docs" / "threat-model.rst").read_text(encoding="utf-8")


def test_the_named_tests_exist() -> None:
    """Each is a file, or a function in a file."""
    named = re.findall(r"``(tests/[\w/]+\.py)(?:::(\w+))?``", PAGE)
    assert len(named) >= 30
    for path, function in named:
        text = (REPOSITORY / path).read_text(encoding="utf-8")
        assert not function or f"def {function}(" in text, f"{path} has no {function}"


def test_each_promise_has_a_test() -> None:
    """Each item of a list ends with the name of a test."""
    items = re.findall(r"^- (.*?)(?=^\S|\Z)", PAGE, re.M | re.S)
    assert len(items) >= 20
    assert [item for item in items if not item.rstrip().endswith("``)")] == []
