"""The paths of the znodes of a group and of its workers in ZooKeeper, relative to the chroot."""

from __future__ import annotations

from functools import lru_cache, partial
from urllib.parse import quote, unquote

from kiel_groups.errors import ConfigError
from kiel_groups.group.znodes.contents import LARGEST_OFFSET, whole_number
from kiel_groups.model import MemberId, Slot, TopicPartition

# The paths of a group's znodes in ZooKeeper, all relative to the chroot.
#
# The znodes under ``/consumers`` and ``/brokers`` are Kafka 0.8's own, byte-compatible, so that its tools see the
# group. The znodes under ``/kiel-groups`` are this package's.


ROOT = "/kiel-groups"
CONSUMERS = "/consumers"
BROKER_IDS = "/brokers/ids"
TOPICS = "/brokers/topics"
CLUSTER_ID = "/cluster/id"
KIEL_GROUPS = "/kiel/groups"

#: The prefix of the groups in which Spark queries and archives commit if they are given no group.
SPARK_GROUPS = "kiel-spark-"

#: The znodes below ``/kiel-groups/<group>`` that the restore file of a deleted group has, with those below them.
RESTORED = ("config", "weights", "starts", "connect")

#: Separates a candidate's uuid from the sequence number that ZooKeeper appends.
CANDIDATE_INFIX = "-n_"


def topic_path(topic: str) -> str:
    """Return the path of a topic's znode. The znode's data lists the partitions and their replicas."""
    return f"{TOPICS}/{topic}"


def partition_state_path(partition: TopicPartition) -> str:
    """Return the path of the znode in which Kafka's controller writes a partition's leader."""
    return f"{topic_path(partition.topic)}/partitions/{partition.partition}/state"


def consumer_root(group: str) -> str:
    """Return the path of the znode below which Kafka 0.8 has a group's consumer ids, owners and offsets."""
    return f"{CONSUMERS}/{group}"


class GroupLayout:
    """The paths of one group. Paths without parameters are computed only once."""

    def __init__(self, group: str) -> None:
        self.group = group
        self.root = f"{ROOT}/{group}"
        self.members = f"{self.root}/members"
        #: The parent of the candidates' znodes.
        self.election = f"{self.root}/election"
        #: The ``allocation`` znode, which has the state of the latest plan.
        self.group_state = f"{self.root}/allocation"
        #: The znode with the settings that all members agree on, and with the dynamic settings.
        self.config = f"{self.root}/config"
        #: The znode with the weights of partitions, for allocators that use weights.
        self.weights = f"{self.root}/weights"
        #: The parent of the first offsets, by topic, of a group whose offsets are in Kafka.
        self.starts = f"{self.root}/starts"
        #: The parent of the orders of offsets, one per partition. Its data names the command that placed them.
        self.orders = f"{self.root}/orders"
        #: The parent of the history entries, one per generation.
        self.history = f"{self.root}/history"
        #: The parent of Kafka's consumer ids, one per member.
        self.ids = f"{consumer_root(group)}/ids"
        #: The parent of the topics' folders of owner znodes. Each owner znode is the claim of one partition.
        self.owners = f"{consumer_root(group)}/owners"
        #: The parent of the topics' folders of offset znodes.
        self.offsets = f"{consumer_root(group)}/offsets"
        #: The parent of the znodes of kiel's members. kiel computes assignments without owner znodes.
        self.kiel_members = f"{KIEL_GROUPS}/{group}/members"

    def member(self, member_id: MemberId) -> str:
        return f"{self.members}/{member_id}"

    def candidate_prefix(self, uuid: str) -> str:
        """Return the path that a candidate creates. ZooKeeper appends a sequence number of ten digits."""
        return f"{self.election}/{uuid}{CANDIDATE_INFIX}"

    def assignment(self, slot: Slot) -> str:
        """Return the path of the znode of one slot's assignment."""
        return f"{self.group_state}/{slot}"

    def topic_starts(self, topic: str) -> str:
        return f"{self.starts}/{topic}"

    def order(self, order_id: str, partition: TopicPartition) -> str:
        return f"{self.orders}/{order_id}:{partition}"

    def consumer_id(self, member_id: MemberId) -> str:
        return f"{self.ids}/{member_id}"

    def topic_owners(self, topic: str) -> str:
        return f"{self.owners}/{topic}"

    def owner(self, partition: TopicPartition) -> str:
        return f"{self.owners}/{partition.topic}/{partition.partition}"

    def topic_offsets(self, topic: str) -> str:
        return f"{self.offsets}/{topic}"

    def offset(self, partition: TopicPartition) -> str:
        return f"{self.offsets}/{partition.topic}/{partition.partition}"

    @property
    def roots(self) -> tuple[str, str, str]:
        """The paths below which the group has znodes: those of this package, of Kafka, and of the kiel package."""
        return self.root, consumer_root(self.group), f"{KIEL_GROUPS}/{self.group}"

    @property
    def parents(self) -> tuple[str, ...]:
        """The paths of the persistent znodes that must exist before a member registers, parents first."""
        ours = (ROOT, self.root, self.members, self.election)
        return (*ours, CONSUMERS, consumer_root(self.group), self.ids, self.owners, self.offsets)


# The paths of the znodes of a group's workers, all relative to the chroot.
#
# A connector's name may have any characters, so its znodes have a percent-encoded name. ``connector`` as the last part
# of a path means the connector itself, beside the numbers of its tasks.


#: The name of a connector's owner znode, beside those of its tasks.
CONNECTOR = "connector"

#: The longest name of a connector, in characters. Percent-encoding may make it 12 times as long.
LONGEST_NAME = 255

_DIGITS = 10


#: A worker needs the same names for each znode of its work.
_quoted = lru_cache(maxsize=4096)(partial(quote, safe=""))


def znode_name(connector: str) -> str:
    """
    Return the name of a connector's znodes: the connector's name, percent-encoded.

    Raises:
        ConfigError: The name is empty, too long, or cannot be encoded.
    """
    if not isinstance(connector, str) or not 0 < len(connector) <= LONGEST_NAME:
        raise ConfigError(f"connector: {connector!r:.80} given; expected a name of 1 to {LONGEST_NAME} characters")
    try:
        name = _quoted(connector)
    except UnicodeEncodeError:
        raise ConfigError(f"connector: {connector!r:.80} given; its name has half of a surrogate pair") from None
    # ZooKeeper does not permit "." and ".." as parts of a path.
    return name.replace(".", "%2E") if name in {".", ".."} else name


def connector_of(name: str) -> str | None:
    """Return the connector whose znodes have this name, or None for a name that ``znode_name`` never returns."""
    try:
        connector = unquote(name, errors="strict")
        return connector if znode_name(connector) == name else None
    except (UnicodeDecodeError, ConfigError):
        return None


def history_offset_of(name: str) -> int | None:
    """Return the configuration offset in the name of a history entry, or None for any other name."""
    return whole_number(name, LARGEST_OFFSET) if len(name) >= _DIGITS else None


class WorkerLayout:
    """
    The paths of the workers of one group.

    Parameters named ``connector`` are names of connectors. ``task`` is a task's number, or None for the connector
    itself.
    """

    def __init__(self, group: str) -> None:
        self.group = group
        #: The parent of the workers' ephemeral znodes, which prove that the workers' sessions are alive.
        self.workers = f"{ROOT}/{group}/workers"
        #: The znode with the configuration offset. Every change of the configuration writes it.
        self.config = f"{ROOT}/{group}/connect"
        #: The parent of the configurations of the connectors.
        self.connectors = f"{self.config}/connectors"
        #: The parent of the entries of the latest changes, one per change.
        self.history = f"{self.config}/history"
        self.statuses = f"{self.config}/status"
        #: The parent of the connectors' folders of source offsets.
        self.offsets = f"{self.config}/offsets"
        #: The parent of the connectors' folders of owner znodes. Each znode is the claim of a connector or task.
        self.owners = f"{self.config}/owners"

    def worker(self, worker_id: str) -> str:
        return f"{self.workers}/{worker_id}"

    def connector(self, connector: str) -> str:
        return f"{self.connectors}/{znode_name(connector)}"

    def history_entry(self, offset: int) -> str:
        return f"{self.history}/{offset:0{_DIGITS}d}"

    def status(self, connector: str, task: int | None = None) -> str:
        """Return the path of a status. A connector's path is above the paths of its tasks."""
        folder = f"{self.statuses}/{znode_name(connector)}"
        return folder if task is None else f"{folder}/{task}"

    def connector_offsets(self, connector: str) -> str:
        return f"{self.offsets}/{znode_name(connector)}"

    def source_offset(self, connector: str, digest: str) -> str:
        """Return the path of the offset of the source partition with this digest."""
        return f"{self.connector_offsets(connector)}/{digest}"

    def connector_owners(self, connector: str) -> str:
        return f"{self.owners}/{znode_name(connector)}"

    def owner(self, connector: str, task: int | None = None) -> str:
        return f"{self.connector_owners(connector)}/{CONNECTOR if task is None else task}"

    @property
    def folders(self) -> tuple[str, ...]:
        """The paths of the persistent znodes that must exist before a worker starts."""
        return (self.workers, self.connectors, self.history, self.statuses, self.offsets, self.owners)
