"""The start of Spark: what it needs, and its settings."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest
from pyspark import SparkContext, java_gateway
from pyspark.sql import SparkSession

from kiel_groups.errors import ConfigError
from kiel_groups.spark.spark_session import start_session

pytestmark = pytest.mark.unit


def test_a_missing_java_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The error is raised before Spark would fail without Java."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.delenv("PYSPARK_GATEWAY_PORT", raising=False)
    with pytest.raises(ConfigError, match="Spark needs Java 17 or later"):
        start_session("archive", master=None, log=None)


@pytest.mark.parametrize("text", ["spark.executor.memory", "executor.memory=4g"])
def test_an_invalid_spark_setting_is_refused(text: str) -> None:
    """Spark itself would ignore the setting."""
    with pytest.raises(ConfigError, match=f"--conf: '{text}' given; expected such as"):
        start_session("archive", master=None, settings=[text], log=None)


@pytest.mark.parametrize("is_connected", [False, True])
def test_java_ends_with_a_start_that_is_interrupted(monkeypatch: pytest.MonkeyPatch, is_connected: bool) -> None:
    """A process that Spark has started ends if Ctrl-C comes before Spark is connected to it, and not later."""
    launcher: Any = java_gateway
    popen, started = launcher.Popen, []

    def interrupted(builder: object) -> None:
        started.append(launcher.Popen(["sleep", "60"]))
        monkeypatch.setattr(SparkContext, "_gateway", object() if is_connected else None)
        raise KeyboardInterrupt

    monkeypatch.setattr(SparkSession.Builder, "getOrCreate", interrupted)
    with pytest.raises(KeyboardInterrupt):
        start_session("archive", master="local[1]", log=None)
    assert started[0].poll() == (None if is_connected else -signal.SIGTERM)
    assert launcher.Popen is popen
    started[0].kill()
    started[0].wait()
