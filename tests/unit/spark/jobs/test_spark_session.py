"""The start of Spark: what it needs, and its settings."""

from __future__ import annotations

from pathlib import Path

import pytest

from kiel_groups.errors import ConfigError
from kiel_groups.spark.jobs.spark_session import start_session

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
