"""Check that this machine has pyspark, pyarrow, a recent Java and a Python for Spark's workers."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import socket
import subprocess
import sys

from kiel_groups.errors import ConfigError

_MIN_JAVA = 17
_VERSION = re.compile(r'version "(?:1\.)?(\d+)')
_TIMEOUT_S = 60.0


def check_libraries() -> None:
    """
    Check that pyspark and pyarrow are installed.

    Raises:
        ConfigError: A library is missing. The message names the library and the package to install.
    """
    missing = [library for library in ("pyspark", "pyarrow") if importlib.util.find_spec(library) is None]
    if missing:
        raise ConfigError(
            f"{' and '.join(missing)} missing in {sys.executable} on {socket.gethostname()}: install kiel-groups[spark]"
            " there; the driver and every worker need it"
        )


def can_bound_batches() -> bool:
    """Return whether this Spark lets a Python source bound its micro-batches; Spark 4.2 and later do."""
    return importlib.util.find_spec("pyspark.sql.streaming.datasource") is not None


def check_python() -> None:
    """
    Check that the Python of Spark's workers exists on this machine.

    The driver's Java also starts this Python, to plan what to read. The check does nothing if ``PYSPARK_PYTHON`` is not
    set, or if ``PYSPARK_DRIVER_PYTHON`` is set.

    Raises:
        ConfigError: ``PYSPARK_PYTHON`` names no program of this machine.
    """
    named = os.environ.get("PYSPARK_PYTHON")
    if named and "PYSPARK_DRIVER_PYTHON" not in os.environ and shutil.which(named) is None:
        raise ConfigError(
            f"PYSPARK_PYTHON: {named} is no program on {socket.gethostname()}; name the Python that has"
            f" kiel-groups[spark], on the driver and on every worker, such as {sys.executable}"
        )


def check_java() -> None:
    """
    Check that the Java that Spark will start is new enough.

    Raises:
        ConfigError: Java is missing, too old, or does not print its version within a minute; the message names the
            remedy.
    """
    home = os.environ.get("JAVA_HOME")
    java = (shutil.which("java", path=f"{home}/bin") if home else None) or shutil.which("java")
    if java is None:
        raise ConfigError(f"Spark needs Java {_MIN_JAVA} or later, and there is no 'java' here; install one")
    try:
        printed = subprocess.run(  # nosec B603 # Java of this machine, with a constant argument
            [java, "-version"], capture_output=True, text=True, errors="replace", timeout=_TIMEOUT_S, check=False
        ).stderr
    except (OSError, subprocess.TimeoutExpired):
        printed = ""
    found = _VERSION.search(printed)
    if found is None or int(found[1]) < _MIN_JAVA:
        which = f"{java} is Java {found[1]}" if found else f"{java} does not print its version"
        raise ConfigError(f"Spark needs Java {_MIN_JAVA} or later, and {which}; set JAVA_HOME to a later one")
