"""The Java command of a server: a small heap, a quick start, and no file outside the server's folder."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from kiel_groups.embedded.jars.classpaths import ClassPath
from kiel_groups.embedded.jars.jar_cache import java_class_path
from kiel_groups.embedded.servers.server_files import LOG4J
from kiel_groups.errors import ServerError

__all__ = ["java_command"]


def java_command(classes: ClassPath, folder: Path, main: str, *arguments: object, heap_mb: int) -> list[str]:
    """
    Return the command that runs the main class of a server, or of one of its tools.

    Args:
        classes: The server's jars, which are fetched if they are not in the cache.
        folder: The server's own folder.
        main: The class with the main method.
        arguments: The arguments of the main method, such as a configuration file.
        heap_mb: The largest heap, in MiB.

    Raises:
        ServerError: Java is not installed, or the jars cannot be fetched.
    """
    logging = folder / "log4j.properties"
    logging.write_text(LOG4J, encoding="utf-8")
    scratch = folder / "tmp"
    scratch.mkdir(exist_ok=True)
    return [
        _java(),
        f"-Xmx{heap_mb}m",
        "-XX:+UseSerialGC",
        "-XX:TieredStopAtLevel=1",
        "-Xshare:auto",
        "-Djava.net.preferIPv4Stack=true",
        # Without these, a killed server leaves performance data, native code and crash reports in other folders.
        "-XX:-UsePerfData",
        f"-Djava.io.tmpdir={scratch}",
        f"-XX:ErrorFile={folder}/crash.log",
        # ZooKeeper 3.9 logs through slf4j-simple. All other servers log through log4j.
        "-Dorg.slf4j.simpleLogger.showDateTime=true",
        "-Dorg.slf4j.simpleLogger.dateTimeFormat=HH:mm:ss,SSS",
        f"-Dlog4j.configuration=file:{logging}",
        "-cp",
        java_class_path(classes),
        main,
        *map(str, arguments),
    ]


def _java() -> str:
    home = os.environ.get("JAVA_HOME")
    java = (shutil.which("java", path=f"{home}/bin") if home else None) or shutil.which("java")
    if java is None:
        raise ServerError(
            "Java is needed to run ZooKeeper and Kafka, and there is no 'java' here; install a runtime, version 11 or "
            "later (Debian: apt install default-jre-headless)"
        )
    return java
