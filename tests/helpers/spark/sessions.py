"""How Spark runs in tests."""

from __future__ import annotations

import os
import sys
from pathlib import Path

__all__ = ["SETTINGS", "worker_environment"]

SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.sql.shuffle.partitions": "2",
    "spark.driver.memory": "1g",
    "spark.sql.streaming.forceDeleteTempCheckpointLocation": "true",
}

#: For Javas that live for seconds: the compiler that is quick, not the one whose code is, and no threads for garbage.
_QUICK_JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:-UsePerfData -Xshare:auto"

_REPOSITORY = Path(__file__).parents[3]


def worker_environment() -> dict[str, str]:
    """What makes workers run in this Python, with this checkout, and Javas start quickly."""
    path = os.pathsep.join(filter(None, (str(_REPOSITORY), os.environ.get("PYTHONPATH", ""))))
    return {
        "PYTHONPATH": path,
        # Workers would take any python3 that is found first.
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
        # Also for those that Spark starts itself: its launcher, and executors.
        "JDK_JAVA_OPTIONS": _QUICK_JAVA,
    }
