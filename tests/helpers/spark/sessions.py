"""The settings and the environment of Spark in tests."""

from __future__ import annotations

import os
import sys
from pathlib import Path

__all__ = ["SETTINGS", "event_log", "worker_environment"]

SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.sql.shuffle.partitions": "2",
    "spark.driver.memory": "1g",
    "spark.sql.streaming.forceDeleteTempCheckpointLocation": "true",
}

#: For short-lived Java processes: only the fast compiler, and no threads for garbage collection.
_QUICK_JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:-UsePerfData -Xshare:auto"

_REPOSITORY = Path(__file__).parents[3]


def event_log(folder: Path) -> dict[str, str]:
    """Return the settings with which Spark writes its event log to a folder, as text."""
    return {
        "spark.eventLog.enabled": "true",
        "spark.eventLog.dir": folder.as_uri(),
        "spark.eventLog.compress": "false",
    }


def worker_environment() -> dict[str, str]:
    """Return environment variables with which workers use this Python and this checkout, and Java starts quickly."""
    path = os.pathsep.join(filter(None, (str(_REPOSITORY), os.environ.get("PYTHONPATH", ""))))
    return {
        "PYTHONPATH": path,
        # Otherwise workers use the first python3 on the PATH.
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
        # Also applies to Spark's launcher and executors.
        "JDK_JAVA_OPTIONS": _QUICK_JAVA,
    }
