"""Classes are imported by their names."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from kiel_groups.errors import ConfigError
from kiel_groups.workers.plugins.config_definition import full_name, load_class

pytestmark = pytest.mark.unit


class Outer:
    class Inner:
        """A class within a class."""


def test_a_class_has_two_forms_of_its_name() -> None:
    """``module:Class`` and the dotted name find the same class; classes within classes take the colon."""
    assert load_class("pathlib:Path") is load_class("pathlib.Path") is Path
    assert full_name(ConfigError) == "kiel_groups.errors.ConfigError"
    assert load_class(full_name(ConfigError)) is ConfigError
    assert load_class(f"{__name__}:Outer.Inner") is Outer.Inner


@pytest.mark.parametrize("name", ["", "Path", ":Path", "pathlib:", "../x:Y", "a b:C", "pathlib.", "pathlib:Path()"])
def test_a_text_that_is_no_name_is_refused(name: str) -> None:
    """A text of another form is refused before anything is imported."""
    with pytest.raises(ConfigError, match="is not the name of a class; expected 'module:Class'"):
        load_class(name)


@pytest.mark.parametrize("name", ["pathlib:Nothing", "pathlib:os", "pathlib:PurePath.parts"])
def test_what_is_no_class_is_refused(name: str) -> None:
    """A name that the module lacks, or that is no class, is refused."""
    with pytest.raises(ConfigError, match="has no class"):
        load_class(name)


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("raise RuntimeError('no licence')", "cannot import 'broken_plugin': RuntimeError: no licence"),
        ("import sys; sys.exit(3)", "cannot import 'broken_plugin': SystemExit: 3"),
        ("class :", "SyntaxError"),
        ("class Skipped(BaseException): ...\nraise Skipped('no broker')", "Skipped: no broker"),
    ],
)
def test_the_error_of_an_import_is_reported(
    body: str, expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A module that raises when it is imported, or exits, is an error that says so."""
    (tmp_path / "broken_plugin.py").write_text(body, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ConfigError, match=expected):
        load_class("broken_plugin:Anything")
    assert "broken_plugin" not in sys.modules


def test_the_error_of_a_late_import_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A module may import its classes when they are asked for."""
    (tmp_path / "late_plugin.py").write_text("def __getattr__(name): raise OSError('no licence')", encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ConfigError, match="cannot import 'late_plugin': OSError: no licence"):
        load_class("late_plugin:Anything")
    sys.modules.pop("late_plugin")
