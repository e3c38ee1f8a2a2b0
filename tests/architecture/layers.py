"""
The layers, lowest first, and the rules for their imports.

A layer imports only itself and the layers below it. Its name is its path below ``kiel_groups``. A package that is
listed in addition to its sub-packages stands for the modules directly in it.
"""

from __future__ import annotations

__all__ = ["APART", "IMPURE", "INDEPENDENT", "LAYERS", "ONLY_IN", "PURE_LAYERS"]

LAYERS = (
    "lazy_imports",
    "wording",
    "backoff",
    "fetch_sizing",
    "model",
    "errors",
    "exc",
    "config",
    "listeners",
    "metrics",
    "kafka_metrics",
    "allocators",
    "allocators/assignors",
    "group/znodes",
    "group/leader",
    "group/member",
    "group/coordinated",
    "wire/primitives",
    "wire/error_codes",
    "wire/framing",
    "wire/topic_arrays",
    "wire/codecs",
    "wire/_messages",
    "wire/message_sets",
    "wire/api",
    "wire/groups",
    "constants",
    "coordination/partition_handler",
    "coordination/zookeeper",
    "coordination/session",
    "coordination/offsets",
    "coordination/kafka_offsets",
    "coordination/leader",
    "coordination/member",
    "admin",
    "clients/calls",
    "clients/net",
    "clients/coordinator",
    "clients/coordinated",
    "clients/fetch",
    "clients/delivery",
    "clients/connected",
    "clients/produce",
    "clients/compat",
    "clients/methods",
    "clients",
    "sync",
    "workers/values",
    "workers/allocation",
    "workers/coordination",
    "workers/rest_client",
    "workers/rest",
    "broker_admin",
    "ops",
    "ops/coordinated",
    "service",
    "spark/environment",
    "spark/checkpoint",
    "spark/options",
    "spark/offsets",
    "spark/tasks",
    "spark/batch",
    "spark/member",
    "spark/stream",
    "spark/reader_factory",
    "spark/source",
    "spark/jobs",
    "spark",
    "embedded/processes",
    "embedded/jars",
    "embedded/faults",
    "embedded/servers",
    "embedded/clusters",
    "embedded",
    "testing",
    "demo",
    "cli/parameters",
    "cli/terminal",
    "cli/records",
    "cli/sources",
    "cli/app",
    "cli/commands",
    "cli",
)

#: Pairs of layers that do not import each other, although one is below the other.
APART = (
    ("group", "wire"),
    ("group/member", "group/leader"),
    ("group/coordinated", "group/leader"),
    ("group/coordinated", "group/member"),
    ("clients/coordinator", "admin"),
    ("clients/coordinated", "admin"),
    ("coordination/member", "admin"),
    ("clients/produce", "clients/coordinator"),
    ("clients/produce", "clients/coordinated"),
    ("clients/produce", "clients/fetch"),
    ("clients/produce", "clients/delivery"),
    ("clients/produce", "clients/connected"),
    ("ops", "coordination"),
    ("ops", "clients"),
    ("ops", "broker_admin"),
    ("broker_admin", "sync"),
    ("spark", "ops"),
    ("testing", "clients"),
    ("testing", "embedded"),
)

#: Pairs of modules of one layer that do not depend on each other, neither directly nor through other modules.
INDEPENDENT = (("clients/net/cluster_metadata", "clients/net/offset_lookup"),)

#: Libraries that pure layers do not import. Pure layers get times and random numbers as arguments.
IMPURE = frozenset({"kazoo", "tornado", "asyncio", "threading", "socket", "time", "random"})
PURE_LAYERS = (
    "wording",
    "backoff",
    "fetch_sizing",
    "model",
    "errors",
    "config",
    "listeners",
    "allocators",
    "group",
    "wire",
    "workers/values",
    "workers/allocation",
    "ops",
)

#: The layers that may import each library. Other layers use the library only through these layers.
ONLY_IN = {
    # testing replaces kazoo's connections.
    "kazoo": ("coordination/zookeeper", "coordination/session", "admin", "testing"),
    "tornado": ("clients/calls", "workers/rest_client", "workers/rest"),
    "aiokafka": ("wire/message_sets/encoder", "wire/message_sets/python_decoder"),
    "cramjam": ("wire/codecs",),
    "pyspark": ("spark",),
    "pyarrow": ("wire/message_sets/arrow_arrays", "spark"),
    "click": ("cli",),
    "rich": ("ops", "embedded", "demo", "cli"),
}
