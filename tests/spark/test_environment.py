"""What Spark needs: if something is missing, one line names it."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest
from pyspark import cloudpickle
from pyspark.sql.datasource import CaseInsensitiveDict

import kiel_groups.spark
from kiel_groups.errors import ConfigError
from kiel_groups.spark import KielDataSource
from kiel_groups.spark.environment import check_java

pytestmark = pytest.mark.spark

OPTIONS = CaseInsensitiveDict({"kafka.bootstrap.servers": "one", "subscribe": "clicks"})

#: Spark 4.0 and 4.1 have no such module.
_BEFORE_SPARK_4_2 = """
import sys
import pyspark.sql.datasource
sys.modules["pyspark.sql.streaming.datasource"] = None
from kiel_groups.errors import ConfigError
from kiel_groups.spark.source import KielDataSource
assert not {"kazoo", "pyarrow", "tornado"} & sys.modules.keys()
options = {"kafka.bootstrap.servers": "one", "subscribe": "clicks"}
source = KielDataSource(options)
print(type(source.streamReader(source.schema())).__name__)
assert "kazoo" not in sys.modules
try:
    KielDataSource({**options, "maxOffsetsPerTrigger": "1"}).streamReader(source.schema())
except ConfigError as error:
    print(error)
"""

_UNPACK = """
import pickle, sys, traceback
sys.modules["kiel_groups"] = None
try:
    pickle.load(sys.stdin.buffer)
except Exception as error:
    traceback.print_exception(error)
"""


def test_a_missing_library_is_named_with_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error names pyarrow, which PySpark does not install, and how to install it."""
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "pyarrow" else find(name))
    with pytest.raises(ConfigError, match=rf"pyarrow missing in {sys.executable} on .+: install kiel-groups\[spark\]"):
        KielDataSource(OPTIONS)
    with pytest.raises(ConfigError, match=r"install kiel-groups\[spark\]"):
        _ = kiel_groups.spark.KielDataSource


@pytest.mark.parametrize(
    ("version", "reason"),
    [
        ('openjdk version "11.0.2" 2019-01-15', "is Java 11; set JAVA_HOME to a later one"),
        ('java version "1.8.0_292"', "is Java 8; set JAVA_HOME"),
        ("what?", "does not print its version"),
    ],
)
def test_a_java_that_is_too_old_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str, reason: str
) -> None:
    """The error names a Java that is too old. JAVA_HOME takes precedence over the path, as in Spark."""
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.write_text(f"#!/bin/sh\necho '{version}' >&2\n")
    java.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(ConfigError, match=f"Spark needs Java 17 or later, and {java} {reason}"):
        check_java()


def test_a_missing_java_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error for a missing Java has the remedy."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    with pytest.raises(ConfigError, match="there is no 'java' here; install one"):
        check_java()


def test_readers_import_little_and_no_class_of_a_later_spark() -> None:
    """
    Spark imports the source in many short-lived processes, and workers import the readers: they load no client of
    ZooKeeper. Before Spark 4.2 there are no bounds of batches.
    """
    done = subprocess.run(
        [sys.executable, "-c", _BEFORE_SPARK_4_2],
        capture_output=True,
        text=True,
        cwd=Path(__file__).parents[2],
        check=True,
    )
    reader, refusal = done.stdout.splitlines()
    assert reader == "StreamReader"
    assert refusal.startswith("maxOffsetsPerTrigger: needs Spark 4.2 or later")


def test_a_worker_without_the_package_is_a_clear_error(tmp_path: Path) -> None:
    """
    The error names the host, the Python, the missing package and the remedy. Without this check, Spark's own code would
    fail.
    """
    made = KielDataSource(OPTIONS)
    for shipped in (made, made.reader(made.schema()), made.streamReader(made.schema())):
        done = subprocess.run(
            [sys.executable, "-c", _UNPACK],
            input=cloudpickle.dumps(shipped),
            cwd=tmp_path,
            capture_output=True,
            check=False,
        )
        first, *_, last = done.stderr.decode().strip().splitlines()
        assert first == last
        assert last.startswith("RuntimeError: the Spark worker on ")
        assert "has no module kiel_groups" in last
        assert "install kiel-groups[spark] there, or ship it with the job" in last
