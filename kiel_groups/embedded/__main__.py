"""
Fetch the jars of most servers into the cache, show the progress, and prepare quick starts of the servers.

This is ``python -m kiel_groups.embedded``. The tests call it before their first start of a server.
"""

import logging
import signal
import sys

from rich.console import Console

from kiel_groups.embedded.class_archives import archive_path, recorded_archives
from kiel_groups.embedded.cluster import Cluster
from kiel_groups.embedded.download_display import prefetch
from kiel_groups.embedded.jars import cache_folder, jar_folder
from kiel_groups.embedded.java_servers import java_path
from kiel_groups.embedded.kafka import MAIN
from kiel_groups.embedded.processes import Server, file_lock
from kiel_groups.embedded.releases import PREFETCHED, kafka_release
from kiel_groups.errors import KielGroupsError, ServerError

_log = logging.getLogger(__name__)

#: The releases of Kafka that the tests start most often.
_OFTEN_STARTED = ("0.8.2.2", "0.9.0.1", "3.9.1")


def _make_archives(console: Console) -> None:
    """Make the class archives of some servers, unless they exist. Servers start without archives, too, but slower."""
    try:
        with file_lock(cache_folder() / "archives.lock"):
            for kafka in _OFTEN_STARTED:
                if archive_path(java_path(), jar_folder(kafka_release(kafka).classes), MAIN).exists():
                    continue
                console.print(f"archiving the classes of Kafka {kafka} …", highlight=False)
                with recorded_archives(), Cluster(kafka=kafka) as cluster:
                    for server in reversed(cluster.servers):
                        _end(server)
    except (OSError, KielGroupsError) as error:
        _log.debug("no archive of classes could be made: %s", error)


def _end(server: Server) -> None:
    """Stop a server. Raise ServerError if it did not end by itself, so that its archive is incomplete."""
    process = server._process
    server._stop()
    if process is None or process.status != 128 + signal.SIGTERM:
        raise ServerError(f"{server.name} did not end by itself after SIGTERM")


if __name__ == "__main__":
    console = Console(stderr=True)
    failures = prefetch(PREFETCHED, console)
    for failure in failures.values():
        console.print(f"error: {failure}", style="red", markup=False, highlight=False)
    if not failures:
        _make_archives(console)
    sys.exit(1 if failures else 0)
