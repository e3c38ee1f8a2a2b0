"""Every benchmark begins, and takes the options that all of them take."""

from __future__ import annotations

import importlib
import pkgutil

import pytest
from click.testing import CliRunner

import benchmarks

pytestmark = pytest.mark.unit

#: Those that are run; the others are what they share.
PARTS = {"contenders", "cpu", "members", "ownership", "measured_group", "transaction_log"}
NAMES = sorted({module.name for module in pkgutil.iter_modules(benchmarks.__path__)} - PARTS)


@pytest.mark.parametrize("name", NAMES)
def test_a_benchmark_says_what_it_takes(name: str) -> None:
    """All that it imports is there."""
    module = importlib.import_module(f"benchmarks.{name}")
    asked = CliRunner().invoke(module.main, ["--help"])
    assert asked.exit_code == 0, asked.output
    assert {"--quick", "--json"} <= set(asked.output.split())
