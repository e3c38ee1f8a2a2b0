"""Every benchmark begins, and takes the options that all of them take."""

from __future__ import annotations

import pkgutil
import subprocess
import sys

import pytest

import benchmarks

pytestmark = pytest.mark.unit

#: Those that are run; the others are what they share.
PARTS = {"contenders", "cpu", "members", "ownership", "scene", "transaction_log"}
NAMES = sorted({module.name for module in pkgutil.iter_modules(benchmarks.__path__)} - PARTS)


@pytest.mark.parametrize("name", NAMES)
def test_a_benchmark_says_what_it_takes(name: str) -> None:
    """All that it imports is there."""
    asked = subprocess.run([sys.executable, "-m", f"benchmarks.{name}", "--help"], capture_output=True, text=True)
    assert asked.returncode == 0, asked.stderr
    assert {"--quick", "--json"} <= set(asked.stdout.split())
