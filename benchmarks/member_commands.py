"""The command lines of processes with members of a group that brokers coordinate: ours, Java's and kafka-python's."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.peers import peer_environment
from kiel_groups.embedded.jars import java_class_path
from kiel_groups.embedded.releases import kafka_release

__all__ = ["BrokerGroup", "MemberSettings", "java_command", "kafka_python_command", "kiel_command"]

MEMBERS = Path(__file__).parent / "members"

_JAVA = ("-Xmx256m", "-XX:+UseSerialGC", "-XX:-UsePerfData", "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn")


@dataclass(frozen=True, slots=True)
class BrokerGroup:
    """A group, its topics, and the release of its brokers, which is also that of its Java members."""

    broker: str
    name: str
    topics: tuple[str, ...]
    release: str

    @property
    def arguments(self) -> list[str]:
        return [self.broker, self.name, ",".join(self.topics)]


@dataclass(frozen=True, slots=True)
class MemberSettings:
    """What members are started with; None: the client's default. The preferred assignor is the first one."""

    assignors: Sequence[str] = ("range",)
    session_timeout_ms: int | None = None
    heartbeat_interval_ms: int | None = None
    autocommit: bool | None = None

    def named(self, assignors: str, session: str, heartbeat: str, autocommit: str) -> dict[str, Any]:
        """Return the settings that are given, under a client's names for them."""
        values = {
            assignors: list(self.assignors),
            session: self.session_timeout_ms,
            heartbeat: self.heartbeat_interval_ms,
            autocommit: self.autocommit,
        }
        return {name: value for name, value in values.items() if value is not None}


def kiel_command(
    group: BrokerGroup, members: int, settings: MemberSettings, more: Mapping[str, Any] | None = None
) -> list[str]:
    """Return the command of a process with members of kiel-groups; ``more`` are further settings of the consumer."""
    named = settings.named("partition_allocator", "session_timeout_ms", "heartbeat_interval_ms", "autocommit")
    return _python(sys.executable, "kiel_group_member", group, members, {**named, **(more or {})})


def kafka_python_command(group: BrokerGroup, members: int, settings: MemberSettings) -> list[str]:
    """Return the command of a process with members of kafka-python, whose environment the first call installs."""
    named = settings.named("assignors", "session_timeout_ms", "heartbeat_interval_ms", "enable_auto_commit")
    if group.release.startswith("0.9"):
        # Brokers of 0.9 do not say their versions.
        named["api_version"] = [0, 9]
    return _python(str(peer_environment("kafka-python")), "kafka_python_group_member", group, members, named)


def java_command(group: BrokerGroup, members: int, settings: MemberSettings) -> list[str]:
    """Return the command of a process with members of the release's kafka-clients, which needs a JDK."""
    named = settings.named(
        "partition.assignment.strategy", "session.timeout.ms", "heartbeat.interval.ms", "enable.auto.commit"
    )
    words = [f"{name}={_java_word(value)}" for name, value in named.items()]
    classes = java_class_path(kafka_release(group.release).classes)
    program = str(MEMBERS / "GroupMember.java")
    return ["java", *_JAVA, "-cp", classes, program, *group.arguments, str(members), *words]


def _java_word(value: object) -> str:
    return ",".join(value) if isinstance(value, list) else str(value).lower()


def _python(python: str, module: str, group: BrokerGroup, members: int, settings: Mapping[str, Any]) -> list[str]:
    return [python, "-m", f"benchmarks.members.{module}", *group.arguments, str(members), json.dumps(settings)]
