"""A standalone cluster of Spark with two workers, and the executors of a job."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

import pyspark

from tests.helpers.commands import Running
from tests.helpers.waiting import eventually_blocking

__all__ = ["StandaloneCluster", "executors_of", "standalone_cluster"]

_MASTER = re.compile(r"Starting Spark master at (spark://\S+)")
_REGISTERED = "Successfully registered with master"
#: A script whose process becomes that of Java.
_SPARK_CLASS = Path(pyspark.__file__).parent / "bin" / "spark-class"


class StandaloneCluster(NamedTuple):
    """The URL of a running master, and the process ids of its workers, of one core each."""

    url: str
    workers: tuple[int, ...]


@contextmanager
def standalone_cluster(folder: Path, timeout_s: float) -> Iterator[StandaloneCluster]:
    """Run a master and two workers, on ports that the system chooses, while the block runs."""
    with ExitStack() as stack:

        def start(role: str, *arguments: str) -> Running:
            words = [f"org.apache.spark.deploy.{role}", "--host", "127.0.0.1", "--webui-port", "0", *arguments]
            return stack.enter_context(Running(words, program=str(_SPARK_CLASS)))

        master = start("master.Master", "--port", "0")
        url = eventually_blocking(lambda: _MASTER.search("\n".join(master.errors)), "the master starts", timeout_s)[1]
        workers = [
            start("worker.Worker", "--cores", "1", "--memory", "1g", "--work-dir", str(folder / str(number)), url)
            for number in range(2)
        ]
        for each in workers:
            eventually_blocking(lambda each=each: _REGISTERED in "\n".join(each.errors), "a worker starts", timeout_s)
        yield StandaloneCluster(url, tuple(each.process.pid for each in workers))


def executors_of(*ancestors: int) -> list[int]:
    """Return the process ids of the executors below a driver or below workers."""
    parents: dict[int, int] = {}
    executors = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            stat, command = (folder / "stat").read_text(), (folder / "cmdline").read_bytes()
        except OSError:
            continue  # The process has ended since.
        pid = int(folder.name)
        parents[pid] = int(stat.rpartition(")")[2].split()[1])
        if b"CoarseGrainedExecutorBackend" in command:
            executors.append(pid)

    def is_below(pid: int) -> bool:
        return pid in ancestors or (pid in parents and is_below(parents[pid]))

    return sorted(pid for pid in executors if is_below(pid))
