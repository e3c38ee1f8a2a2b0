"""A Spark session for a job at the command line: checked before, quiet, and told in one line where it fails."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from kiel_groups.errors import ConfigError, KielGroupsError
from kiel_groups.spark.environment import check_java
from kiel_groups.spark.jobs.query_run import JAVA_IS_GONE, spark_errors_told

__all__ = ["start_session", "stop_session"]

log = logging.getLogger(__name__)

#: Spark-submit has started Java before us, and with it the master and all that is set on its line.
_SUBMITTED = "PYSPARK_GATEWAY_PORT"
_STANDARD_ERROR = 2

#: What one wants on a machine that does nothing else for others; all of it can be set otherwise.
_LOCAL_SETTINGS = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.ui.enabled": "false",
}
_SETTINGS = {
    "spark.ui.showConsoleProgress": "false",
    # Of Spark 4.1, and the larger half of what a small task costs.
    "spark.python.unix.domain.socket.enabled": "true",
}


def start_session(name: str, *, master: str | None, settings: Sequence[str] = (), log: Path | None) -> SparkSession:
    """
    Start Spark, or take over what spark-submit has started.

    Args:
        name: What Spark's own pages call the job.
        master: Where to run; None: where spark-submit says, or else on all cores of this machine.
        settings: Texts like ``name=value``.
        log: Where Java's and the workers' standard error goes; None: where ours goes.

    Raises:
        ConfigError: No Java, an old one, or a setting that is none.
        KielGroupsError: Spark does not start; says the last line of its log.
    """
    pairs = dict(_pair(each) for each in settings)
    if _SUBMITTED not in os.environ:
        check_java()
        master = master or "local[*]"
    local = master is not None and master.startswith("local")
    if local:
        # Workers would take any python3 that is found first.
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.appName(name)
    if master is not None:
        builder = builder.master(master)
    for key, value in {**_SETTINGS, **(_LOCAL_SETTINGS if local else {}), **pairs}.items():
        builder = builder.config(key, value)
    with _errors_to(log), spark_errors_told():
        try:
            return builder.getOrCreate()
        except PySparkException as error:
            if error.getCondition() != "JAVA_GATEWAY_EXITED":
                raise
            raise KielGroupsError(f"Spark did not start: {_last_line(log)}") from error


def stop_session(spark: SparkSession) -> None:
    """End what ``start_session`` gave, also where its Java has died, which somebody has told by then."""
    try:
        spark.stop()
    except JAVA_IS_GONE as error:
        log.info("Spark was not stopped: %s", error)


def _pair(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name.startswith("spark."):
        raise ConfigError(f"--conf: {text!r} given; expected such as 'spark.executor.memory=4g'")
    return name.strip(), value.strip()


@contextmanager
def _errors_to(log: Path | None) -> Iterator[None]:
    """Processes that are started in the block write their standard error there, as long as they live."""
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
    return next((line.strip() for line in reversed(lines) if line.strip()), "its own words stand above")
