"""What Spark needs around us, and one clear line where it is missing."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import socket
import subprocess
import sys

from kiel_groups.errors import ConfigError

__all__ = ["check_java", "check_libraries"]

_LIBRARIES = ("pyspark", "pyarrow")
_LEAST_JAVA = 17
_VERSION = re.compile(r'version "(?:1\.)?(\d+)')
_ANSWER_S = 60.0


def check_libraries() -> None:
    """
    Make sure that pyspark and pyarrow are there.

    Raises:
        ConfigError: One is not; names it, and what to install.
    """
    missing = [library for library in _LIBRARIES if importlib.util.find_spec(library) is None]
    if missing:
        raise ConfigError(
            f"{' and '.join(missing)} missing in {sys.executable} on {socket.gethostname()}: install kiel-groups[spark]"
            " there; the driver and every worker need it"
        )


def check_java() -> None:
    """
    Make sure that the Java that Spark is going to start is new enough.

    Raises:
        ConfigError: There is none, or it is too old; says which was found, and what to do.
    """
    home = os.environ.get("JAVA_HOME")
    java = (shutil.which("java", path=f"{home}/bin") if home else None) or shutil.which("java")
    if java is None:
        raise ConfigError(f"Spark needs Java {_LEAST_JAVA} or later, and there is no 'java' here; install one")
    told = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=_ANSWER_S, check=False).stderr
    found = _VERSION.search(told)
    if found is None or int(found[1]) < _LEAST_JAVA:
        which = f"{java} is Java {found[1]}" if found else f"{java} does not tell its version"
        raise ConfigError(f"Spark needs Java {_LEAST_JAVA} or later, and {which}; set JAVA_HOME to a later one")
