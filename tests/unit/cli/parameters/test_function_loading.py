"""Functions given by name are loaded from the current folder, or refused with one line."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from kiel_groups.cli.parameters.function_loading import load_function
from kiel_groups.errors import ConfigError

pytestmark = pytest.mark.unit

MODULE = """
class Shares:
    @staticmethod
    def equal(members, partitions):
        return {}

def mine(members, partitions):
    return {}

number = 3
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """
    Make a new folder with modules the current one. As for an installed command, the folder is not on Python's path.
    """
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path])
    monkeypatch.setattr(sys, "modules", dict(sys.modules))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    (tmp_path / "allocators_of_mine.py").write_text(MODULE)
    (tmp_path / "needy_module.py").write_text("import a_library_that_is_missing\n")
    (tmp_path / "leaving_module.py").write_text("import sys\nsys.exit('bye')\n")
    return tmp_path


@pytest.mark.parametrize("name", ["mine", "Shares.equal"])
def test_a_function_is_found_in_the_current_folder(name: str) -> None:
    """A function is loaded from a module in the current folder, from the top of the module or from a class."""
    assert load_function(f"allocators_of_mine:{name}", "--allocator")([], []) == {}


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("", "'' given; expected 'module:function'"),
        ("module", "'module' given; expected 'module:function'"),
        (":function", "':function' given; expected 'module:function'"),
        ("module:", "'module:' given; expected 'module:function'"),
        ("no_such_module:f", "there is no module 'no_such_module', neither in "),
        ("no_such_module.at.all:f", "there is no module 'no_such_module.at.all', neither in "),
        ("needy_module:f", "'needy_module' cannot be imported: No module named 'a_library_that_is_missing'"),
        ("leaving_module:f", "'leaving_module' cannot be imported: it raised SystemExit('bye')"),
        ("allocators_of_mine:missing", "module 'allocators_of_mine' has no 'missing'"),
        ("allocators_of_mine:Shares.missing", "module 'allocators_of_mine' has no 'Shares.missing'"),
        ("allocators_of_mine:number", "'allocators_of_mine:number' is a value of type int; expected a function"),
    ],
)
def test_a_function_that_cannot_be_loaded_is_named(name: str, words: str) -> None:
    """A function that cannot be loaded is refused. The error starts with the option, and says what is wrong."""
    with pytest.raises(ConfigError) as caught:
        load_function(name, "--allocator")
    assert str(caught.value).startswith(f"--allocator: {words}")
