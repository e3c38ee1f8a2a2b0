"""Start and stop the Spark session of a command: check its needs first, print little, and shorten errors."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pyspark import SparkContext, java_gateway
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from kiel_groups.errors import ConfigError, KielGroupsError
from kiel_groups.spark.environment import check_java
from kiel_groups.spark.jobs.query_run import JAVA_ENDED, shortened_spark_errors

__all__ = ["start_session", "stop_session"]

log = logging.getLogger(__name__)

#: Set if spark-submit has started Java for this process, with the master and the settings of its command line.
_SUBMITTED = "PYSPARK_GATEWAY_PORT"
_STANDARD_ERROR = 2
#: How long a Java process that has not started yet may take to end, in seconds.
_JAVA_END_S = 10

#: Defaults on a single machine: no ports for other hosts, no web interface; the user can override them.
_LOCAL_SETTINGS = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.ui.enabled": "false",
}
_SETTINGS = {
    "spark.ui.showConsoleProgress": "false",
    # Since Spark 4.1: without it, a small task takes more than twice as long.
    "spark.python.unix.domain.socket.enabled": "true",
}


def start_session(name: str, *, master: str | None, settings: Sequence[str] = (), log: Path | None) -> SparkSession:
    """
    Start Spark, or connect to the Java process that spark-submit has started.

    Args:
        name: The name of the job in Spark's web interface.
        master: The cluster to run on. None means spark-submit's cluster or, without spark-submit, all cores of this
            machine.
        settings: Settings of Spark, each as ``name=value``.
        log: The file for the standard error of Java and the workers. None lets them share this process's own.

    Raises:
        ConfigError: There is no Java, it is too old, or a setting is not valid.
        KielGroupsError: Spark did not start; the message has the last line of its log.
    """
    pairs = dict(_pair(each) for each in settings)
    if _SUBMITTED not in os.environ:
        check_java()
        master = master or "local[*]"
    local = master is not None and master.startswith("local")
    if local:
        # Otherwise workers would use the first python3 in the path.
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.appName(name)
    if master is not None:
        builder = builder.master(master)
    for key, value in {**_SETTINGS, **(_LOCAL_SETTINGS if local else {}), **pairs}.items():
        builder = builder.config(key, value)
    with _errors_to(log), shortened_spark_errors(), _no_java_left():
        try:
            return builder.getOrCreate()
        except PySparkException as error:
            if error.getCondition() != "JAVA_GATEWAY_EXITED":
                raise
            raise KielGroupsError(f"Spark did not start: {_last_line(log)}") from error


def stop_session(spark: SparkSession) -> None:
    """Stop a session. If its Java process has died, only log this, because the job has already reported it."""
    try:
        spark.stop()
    except JAVA_ENDED as error:
        log.info("Spark could not be stopped, as its Java process has ended: %s", error)


def _pair(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name.startswith("spark."):
        raise ConfigError(f"--conf: {text!r} given; expected such as 'spark.executor.memory=4g'")
    return name.strip(), value.strip()


@contextmanager
def _no_java_left() -> Iterator[None]:
    """
    End the Java process if the block ends, as by Ctrl-C, before Spark is connected to it.

    Java ends with this process, whose pipe it reads, but only once it has stored its port in a folder. When pyspark is
    interrupted while it waits for that, it deletes the folder; Java then fails to store the port, and runs for ever.
    """
    launcher: Any = java_gateway
    started: list[subprocess.Popen[bytes]] = []
    popen = launcher.Popen

    def start(*args: Any, **settings: Any) -> subprocess.Popen[bytes]:
        # A KeyboardInterrupt is raised in the main thread, where it may come before the new process is known.
        with ThreadPoolExecutor(1) as thread:
            thread.submit(lambda: started.append(popen(*args, **settings))).result()
        return started[-1]

    launcher.Popen = start
    try:
        yield
    finally:
        launcher.Popen = popen
        if started and SparkContext._gateway is None:
            # SIGTERM lets Java delete its temporary folders.
            started[-1].terminate()
            try:
                started[-1].wait(_JAVA_END_S)
            except subprocess.TimeoutExpired:
                started[-1].kill()


@contextmanager
def _errors_to(log: Path | None) -> Iterator[None]:
    """Redirect standard error to a file within the block; processes that are started there keep writing to the file."""
    if log is None:
        yield
        return
    kept = os.dup(_STANDARD_ERROR)
    try:
        with log.open("ab") as file:
            os.dup2(file.fileno(), _STANDARD_ERROR)
        yield
    finally:
        os.dup2(kept, _STANDARD_ERROR)
        os.close(kept)


def _last_line(log: Path | None) -> str:
    lines = log.read_text(encoding="utf-8", errors="replace").split("\n") if log is not None else []
    return next((line.strip() for line in reversed(lines) if line.strip()), "see its output above")
