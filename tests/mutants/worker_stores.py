"""Mutants of the stores of worker groups: configuration, statuses, source offsets."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

__all__ = ["MUTANTS"]

_CONFIG_READER = "workers/stores/config_reader.py"
_CONFIG_STORE = "workers/stores/config_store.py"
_DELETED_CONNECTORS = "workers/stores/deleted_connectors.py"
_SOURCE_OFFSET_STORE = "workers/stores/source_offset_store.py"
_STATUS_STORE = "workers/stores/status_store.py"
_STORED_VALUES = "workers/stores/stored_values.py"
_WORKER_CONTENTS = "group/znodes/worker_contents.py"
_WORKER_LAYOUT = "group/znodes/worker_layout.py"

_CONFIGURATION_TEST = "tests/sim/test_worker_configuration.py"
_OFFSETS_TEST = "tests/sim/test_source_offsets.py"
_STATUSES_TEST = "tests/sim/test_worker_statuses.py"
_CONTENTS_TEST = "tests/unit/group/znodes/test_worker_contents.py"

MUTANTS = (
    # The configuration
    Mutant(
        "a change of the configuration overwrites the offset of a change that came first",
        _CONFIG_STORE,
        "encode_config_offset(entry.offset), base.version)",
        "encode_config_offset(entry.offset))",
        _CONFIGURATION_TEST,
    ),
    Mutant(
        "a change whose answer is lost is written again",
        _CONFIG_STORE,
        "return await self._was_written(entry)",
        "return False",
        _CONFIGURATION_TEST,
    ),
    Mutant(
        "a change whose request is lost counts as written",
        _CONFIG_STORE,
        "return await self._was_written(entry)",
        "return True",
        _CONFIGURATION_TEST,
    ),
    Mutant(
        "a change is decided on the data of a slow server",
        _CONFIG_STORE,
        "        await self._writer.prove()\n        while True:",
        "        while True:",
        _CONFIGURATION_TEST,
    ),
    Mutant(
        "tasks are configured by a worker that has lost the connector",
        _CONFIG_STORE,
        "(*guards, *self._operations(base, edit, entry))",
        "(*self._operations(base, edit, entry),)",
        _CONFIGURATION_TEST,
    ),
    Mutant(
        "new settings discard the tasks of a connector",
        _CONFIG_STORE,
        "config=settings, target=old.target, tasks=old.tasks,",
        "config=settings, target=old.target,",
        _CONFIGURATION_TEST,
    ),
    Mutant(
        "the history grows without a limit",
        _CONFIG_STORE,
        "base.kept[: -(MOST_KEPT - 1)]",
        "base.kept[:0]",
        _CONFIGURATION_TEST,
    ),
    Mutant(
        "configuration offsets start again below those of the history",
        _CONFIG_STORE,
        "max(offset, *kept[-1:], 0) + 1",
        "offset + 1",
        _CONFIGURATION_TEST,
    ),
    Mutant(
        "a connector that is too large for a server is sent",
        _CONFIG_STORE,
        "if len(data) > LARGEST_BYTES:",
        "if len(data) > 2 * LARGEST_BYTES:",
        _CONFIGURATION_TEST,
    ),
    Mutant(
        "a snapshot mixes configurations of several offsets",
        _CONFIG_READER,
        "if _identity(before) == identity:",
        "if after is not None or before is None:",
        _CONFIGURATION_TEST,
    ),
    Mutant(
        "a follower misses a change that comes while it reads a snapshot",
        _CONFIG_READER,
        "                await self._watch(changed.set)\n                try:\n"
        "                    snapshot = await self.snapshot()\n",
        "                try:\n                    snapshot = await self.snapshot()\n"
        "                    await self._watch(changed.set)\n",
        _CONFIGURATION_TEST,
    ),
    Mutant(
        "garbage in one connector stops all",
        _STORED_VALUES,
        '    except ProtocolError as error:\n        problem = f"',
        '    except TypeError as error:\n        problem = f"',
        _CONFIGURATION_TEST,
    ),
    Mutant(
        "a clean-up deletes the status of a connector that is created again",
        _DELETED_CONNECTORS,
        "unchanged = Check(layout.config, config.version)",
        "unchanged = Check(layout.config)",
        "tests/sim/test_deleted_connectors.py",
    ),
    # Statuses
    Mutant(
        "a worker without the claim reports",
        _STATUS_STORE,
        "return Check(owner_path(self._layout, work)), Check(self._layout.connector(work.connector))",
        "return (Check(self._layout.connector(work.connector)),)",
        _STATUSES_TEST,
    ),
    Mutant(
        "the status of a deleted connector is written",
        _STATUS_STORE,
        "return Check(owner_path(self._layout, work)), Check(self._layout.connector(work.connector))",
        "return (Check(owner_path(self._layout, work)),)",
        _STATUSES_TEST,
    ),
    Mutant(
        "an old status follows a newer one after a lost answer",
        _STATUS_STORE,
        "return operations if self._newest.get(work) is statuses[work] else None",
        "return operations",
        _STATUSES_TEST,
    ),
    Mutant(
        "the status of a former owner or of a former connector counts",
        _STORED_VALUES,
        "or written.mzxid < max(claimed_zxid, created_zxid)",
        "or written.mzxid < 0",
        _STATUSES_TEST,
    ),
    Mutant(
        "a status outlives its owner",
        _STORED_VALUES,
        "if claimed_zxid is None or created_zxid is None or",
        "if claimed_zxid is not None and created_zxid is not None and",
        _STATUSES_TEST,
    ),
    # Source offsets
    Mutant(
        "a task stores offsets without its claim",
        _SOURCE_OFFSET_STORE,
        "{number: (claim, *chunk) for",
        "{number: (Check('/'), *chunk) for",
        _OFFSETS_TEST,
    ),
    Mutant(
        "offsets whose answer is lost count as stored",
        _SOURCE_OFFSET_STORE,
        "            for number in outcome.done:\n",
        "            for number in [*outcome.done, *outcome.unknown]:\n",
        _OFFSETS_TEST,
    ),
    Mutant(
        "the first offset of a partition in a batch is stored, not the last",
        _SOURCE_OFFSET_STORE,
        "        found[partition_digest(partition)] = data\n",
        "        found.setdefault(partition_digest(partition), data)\n",
        _OFFSETS_TEST,
    ),
    Mutant(
        "an offset is read from the znode of another partition",
        _WORKER_CONTENTS,
        'if digest != path.rpartition("/")[2]:',
        "if not digest:",
        _OFFSETS_TEST,
    ),
    # Contents and paths
    Mutant(
        "equal source partitions have several znodes",
        _WORKER_CONTENTS,
        "json.dumps(_plain(value, what), sort_keys=True,",
        "json.dumps(_plain(value, what), sort_keys=False,",
        _CONTENTS_TEST,
    ),
    Mutant(
        "an error shows the value of a setting",
        _WORKER_CONTENTS,
        'should have settings, texts by name")',
        'should have settings, texts by name, found {found}")',
        _CONTENTS_TEST,
    ),
    Mutant(
        "the beginning of a long trace is stored",
        _WORKER_CONTENTS,
        "ensure_binary(_CUT) + trace[len(_CUT) - LARGEST_TRACE_BYTES :]",
        "ensure_binary(_CUT) + trace[: LARGEST_TRACE_BYTES - len(_CUT)]",
        _CONTENTS_TEST,
    ),
    Mutant(
        "a connector with the name .. has no znode",
        _WORKER_LAYOUT,
        'return name.replace(".", "%2E") if name in {".", ".."} else name',
        "return name",
        "tests/unit/group/znodes/test_worker_layout.py",
    ),
)
