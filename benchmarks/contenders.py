"""The clients whose groups are measured: kiel-groups, and the clients with which it is compared."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from benchmarks.ownership import Paths
from kiel_groups.embedded.jars import java_class_path
from kiel_groups.embedded.releases import CLASS_PATHS

__all__ = ["CONTENDERS", "FLOOR", "SESSION_TIMEOUT_MS", "Contender", "Group", "kafka_paths", "our_contender"]

MEMBERS = Path(__file__).parent / "members"
SESSION_TIMEOUT_MS = 4_000
FLOOR = {"debounce_quiet_ms": 0, "debounce_initial_delay_ms": 0}


@dataclass(frozen=True, slots=True)
class Group:
    """A group and its topics. A contender's members get these values as arguments."""

    zookeeper: str
    broker: str
    name: str
    topics: tuple[str, ...]
    partitions: int


@dataclass(frozen=True, slots=True)
class Contender:
    """
    One client that divides partitions among members.

    ``command`` returns the command line of a process with a number of members. ``paths`` returns the paths of the
    client's znodes. If the client ``balances_topics`` one by one, members may differ by one partition in each topic.
    If ``one_process``, the members that stay share a process. ``slow`` clients are measured in one round. A client that
    divides ``mere_names`` needs no topics in Kafka.
    """

    name: str
    command: Callable[[Group, int], list[str]]
    paths: Callable[[Group], Paths]
    one_process: bool = False
    balances_topics: bool = False
    slow: bool = False
    mere_names: bool = False


def kafka_paths(group: Group) -> Paths:
    """Return the paths of a group's znodes in the layout of Kafka 0.8."""
    folder = f"/consumers/{group.name}"
    return Paths(rf"{folder}/owners/(?P<partition>[^/]+/\d+)", rf"{folder}/ids/[^/]+")


def our_contender(name: str, settings: Mapping[str, object]) -> Contender:
    """Return the contender whose members are consumers of kiel-groups with these settings."""

    def command(group: Group, members: int) -> list[str]:
        where = [group.zookeeper, group.broker, group.name, ",".join(group.topics)]
        return _python("ours", *where, str(members), str(SESSION_TIMEOUT_MS), json.dumps(settings))

    return Contender(name, command, kafka_paths)


def _set_partitioner(name: str, settings: Mapping[str, object], *, slow: bool) -> Contender:
    def command(group: Group, members: int) -> list[str]:
        assert members == 1
        arguments = [str(group.partitions), str(SESSION_TIMEOUT_MS), json.dumps(settings)]
        return _python("set_partitioner", group.zookeeper, group.name, *arguments)

    def paths(group: Group) -> Paths:
        lock = r"[0-9a-f]{32}__lock__(?P<place>\d+)"
        return Paths(rf"/{group.name}/locks/(?P<partition>\d+)/{lock}", rf"/{group.name}/party/[^/]+")

    return Contender(name, command, paths, slow=slow, mere_names=True)


def _java() -> Contender:
    def command(group: Group, members: int) -> list[str]:
        classes = java_class_path(CLASS_PATHS["kafka-0.8.2.2"])
        program = str(MEMBERS / "HighLevelConsumer.java")
        arguments = [group.zookeeper, group.name, ",".join(group.topics), str(members), str(SESSION_TIMEOUT_MS)]
        return ["java", "-Xmx256m", "-XX:+UseSerialGC", "-cp", classes, program, *arguments]

    return Contender("Java 0.8.2.2", command, kafka_paths, one_process=True, balances_topics=True)


def _python(module: str, *arguments: str) -> list[str]:
    return [sys.executable, "-m", f"benchmarks.members.{module}", *arguments]


CONTENDERS = (
    our_contender("ours, sticky, floor", {"partition_allocator": "sticky", **FLOOR}),
    our_contender("ours, round robin, defaults", {}),
    _set_partitioner("SetPartitioner, tuned", {"time_boundary": 0.1, "max_reaction_time": 0.1}, slow=False),
    _java(),
    _set_partitioner("SetPartitioner", {}, slow=True),
)
