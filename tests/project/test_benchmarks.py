"""Each benchmark starts and has the common options."""

from __future__ import annotations

import importlib
import pkgutil

import pytest
from click.testing import CliRunner

import benchmarks

pytestmark = pytest.mark.unit

#: Modules that the benchmarks share.
PARTS = {"contenders", "cpu", "delivery", "members", "ownership", "measured_group", "peers", "transaction_log"} | {
    "broker_contenders",
    "broker_rounds",
    "coordinated_group",
    "member_commands",
    "reported_ownership",
    "reporting_processes",
    "worker_group",
}
NAMES = sorted({module.name for module in pkgutil.iter_modules(benchmarks.__path__)} - PARTS)


@pytest.mark.parametrize("name", NAMES)
def test_a_benchmark_has_help(name: str) -> None:
    """A benchmark prints its help, which requires that all its imports work, and has the common options."""
    module = importlib.import_module(f"benchmarks.{name}")
    outcome = CliRunner().invoke(module.main, ["--help"])
    assert outcome.exit_code == 0, outcome.output
    assert {"--quick", "--json"} <= set(outcome.output.split())
