"""Fixtures of the tests on simulated time."""

from __future__ import annotations

import os
from hashlib import sha256

import pytest

from tests.sim.session_bench import SessionBench
from tests.sim.worker_bench import WorkerBench

#: The environment variable with the first seed, for repeating a run. If it is not set, each run has other seeds.
BASE = "SIM_SEED_BASE"


@pytest.fixture
def base(testrun_uid: str) -> int:
    """Return the first seed of this run: the same in all processes of a run, and different in each run."""
    given = os.environ.get(BASE)
    return int(given) if given else int.from_bytes(sha256(testrun_uid.encode()).digest()[:5], "big")


@pytest.fixture
def bench() -> SessionBench:
    """Return a bench for one session on a single simulated server."""
    return SessionBench()


@pytest.fixture
def workers() -> WorkerBench:
    """Return a bench for the stores of workers on a single simulated server."""
    return WorkerBench()
