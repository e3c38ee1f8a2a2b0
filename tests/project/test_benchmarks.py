"""Each benchmark starts and has the common options."""

from __future__ import annotations

import importlib
import pkgutil
import subprocess
from pathlib import Path

import pytest
from click.testing import CliRunner

import benchmarks
from benchmarks.delivery.clients import HERE, program

pytestmark = pytest.mark.unit

#: Modules that the benchmarks share.
PARTS = {"contenders", "cpu", "delivery", "members", "ownership", "measured_group", "peers", "transaction_log"}
NAMES = sorted({module.name for module in pkgutil.iter_modules(benchmarks.__path__)} - PARTS)


@pytest.mark.parametrize("name", NAMES)
def test_a_benchmark_has_help(name: str) -> None:
    """A benchmark prints its help, which requires that all its imports work, and has the common options."""
    module = importlib.import_module(f"benchmarks.{name}")
    outcome = CliRunner().invoke(module.main, ["--help"])
    assert outcome.exit_code == 0, outcome.output
    assert {"--quick", "--json"} <= set(outcome.output.split())


def test_another_checkout_is_measured_from_within_this_one(tmp_path: Path) -> None:
    """
    A program imports kiel-groups from the checkout that it is given. An earlier version measured the kiel-groups of the
    working directory under the name of every checkout.
    """
    package = tmp_path / "kiel_groups"
    package.mkdir()
    (package / "__init__.py").write_text("print('the other one')", encoding="utf-8")
    command = program(tmp_path, "progress")
    found = subprocess.run(
        command.arguments, env=command.environment, cwd=HERE, capture_output=True, text=True, check=True
    )
    assert found.stdout == "the other one\n"
