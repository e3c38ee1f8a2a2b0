"""One Spark session for all tests that need one, because a session takes seconds to start."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from pyspark.sql import SparkSession

from kiel_groups.config import SECURITY_VARIABLE
from kiel_groups.spark import batches
from kiel_groups.spark.environment import can_bound_batches
from tests.helpers.spark.sessions import SETTINGS, event_log, worker_environment

#: Tests of what only Spark 4.2 and later offer.
collect_ignore = [] if can_bound_batches() else ["test_stream_reader.py"]
#: A session takes seconds to start, and minutes on a busy machine.
_TIMEOUT_S = 600


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put all tests that need the session into one process, which has the only session."""
    for item in items:
        if "spark" not in getattr(item, "fixturenames", ()):
            continue
        for mark in (pytest.mark.xdist_group("spark-session"), pytest.mark.timeout(_TIMEOUT_S)):
            if item.get_closest_marker(mark.name) is None:
                item.add_marker(mark)


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """
    Wait for 0.3 s, instead of the request timeout, to see whether lost data reappears.

    The timeout of requests stays: with a short one, a pause of the machine would lose their answers.
    """
    fast = SimpleNamespace(monotonic=lambda: 100 * time.monotonic(), sleep=time.sleep)
    monkeypatch.setattr(batches, "time", fast)


@pytest.fixture(scope="session")
def spark_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """
    Return a folder of the session: with its event log, the work folders of its executors, and ``security.toml``, the
    file for secured servers, which has no credentials until a test writes them.
    """
    folder = tmp_path_factory.mktemp("spark")
    (folder / "security.toml").write_text("[zookeeper]\n", encoding="utf-8")
    (folder / "security.toml").chmod(0o600)
    (folder / "events").mkdir()
    return folder


@pytest.fixture(scope="session")
def spark(spark_folder: Path) -> Iterator[SparkSession]:
    """
    Provide a session with two cores in this process, on the loopback interface. The data source needs no registration.
    """
    with pytest.MonkeyPatch.context() as patched:
        for name, value in worker_environment().items():
            patched.setenv(name, value)
        builder = SparkSession.builder.master("local[2]").appName("tests")
        for name, value in SETTINGS.items():
            builder = builder.config(name, value)
        for name, value in event_log(spark_folder / "events").items():
            builder = builder.config(name, value)
        builder = builder.config("spark.sql.warehouse.dir", str(spark_folder / "warehouse"))
        builder = builder.config("spark.local.dir", str(spark_folder / "work"))
        with pytest.MonkeyPatch.context() as started:
            # Java and all processes that it starts inherit the variable.
            started.setenv(SECURITY_VARIABLE, str(spark_folder / "security.toml"))
            session = builder.getOrCreate()
        session.sparkContext.setLogLevel("ERROR")
        yield session
        session.stop()
