"""The start of Spark: what it needs, and its settings."""

from __future__ import annotations

import signal
import socket
from pathlib import Path
from typing import Any

import pytest
from pyspark import SparkContext, java_gateway
from pyspark.sql import SparkSession

from kiel_groups.errors import ConfigError, KielGroupsError
from kiel_groups.spark.spark_session import cause_in, check_master, start_session

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


def test_a_missing_python_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Otherwise Spark would say that there is no data source 'kiel'."""
    monkeypatch.setenv("PYSPARK_PYTHON", str(tmp_path / "python"))
    monkeypatch.delenv("PYSPARK_DRIVER_PYTHON", raising=False)
    with pytest.raises(ConfigError, match=f"^PYSPARK_PYTHON: {tmp_path}/python is no program on "):
        start_session("archive", master="local[1]", log=None)


@pytest.mark.parametrize("url", ["spark://master", "spark://:7077", "spark://a:1,b"])
def test_the_url_of_a_master_needs_a_port(url: str) -> None:
    """Spark itself would start Java before it reports that."""
    with pytest.raises(ConfigError, match=f"^--master: '{url}' given; expected such as local"):
        start_session("archive", master=url, log=None)


def test_masters_that_do_not_answer_are_named() -> None:
    """Spark would try for a minute. With several masters, one that answers is enough: Spark finds the active one."""
    with socket.socket() as closed, socket.socket() as listening:
        closed.bind(("127.0.0.1", 0))
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        dead, live = (f"127.0.0.1:{each.getsockname()[1]}" for each in (closed, listening))
        with pytest.raises(KielGroupsError) as found:
            start_session("archive", master=f"spark://{dead},no-such-host.invalid:7077", log=None)
        assert str(found.value).startswith(
            f"--master: no Spark master can be reached ({dead}: Connection refused; no-such"
        )
        check_master(f"spark://{dead},{live}")


@pytest.mark.parametrize(
    ("lines", "cause"),
    [
        (
            'WARN Utils: Set SPARK_LOCAL_IP\nException in thread "main" org.apache.spark.SparkException: When running'
            " with master 'yarn' either A or B must be set.\n\tat org.apache.spark.A.main(A.scala)\n",
            "When running with master 'yarn' either A or B must be set.",
        ),
        ("Error: Could not find or load main class x\nCaused by: java.lang.ClassNotFoundException: x\n", "x"),
        ("something\nelse\n\n", "else"),
        ("", "see its output above"),
    ],
)
def test_the_cause_of_a_failed_start_is_found_in_the_log(tmp_path: Path, lines: str, cause: str) -> None:
    """The last lines of a log are stack frames."""
    (tmp_path / "log").write_text(lines)
    assert cause_in(tmp_path / "log") == cause


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
