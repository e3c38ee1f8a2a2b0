"""
Read and write files of a group's offsets: exports, and the restore files of commands that replace or delete offsets.

Three formats are read: this package's JSON, the lines of Kafka 0.8's ExportZkOffsets, and the lines
``topic,partition,offset`` of kafka-consumer-groups.
"""

from __future__ import annotations

import csv
import json
import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from typing import Any
from urllib.parse import quote

from kiel_groups.errors import ConfigError
from kiel_groups.group.znodes.contents import LARGEST_OFFSET, LARGEST_PARTITION, whole_number
from kiel_groups.group.znodes.layout import RESTORED, GroupLayout
from kiel_groups.model import TopicPartition
from kiel_groups.wording import some

#: The largest file that is read. 100,000 partitions need about 5 MB.
LARGEST_BYTES = 64 << 20

_VERSION = 1
_MOST_DIGITS = len(str(LARGEST_OFFSET))
#: The longest part of a group's name in the name of a restore file: brokers permit longer names than file systems.
_LONGEST_PART = 150

#: A line of Kafka 0.8's tools, with the path of an offset znode below the chroot.
_ZNODE_LINE = re.compile(
    r"/consumers/(?P<group>[^/]+)/offsets/(?P<topic>[^/:]+)/(?P<partition>[0-9]+):(?P<offset>[0-9]+)"
)
_EXPECTED = (
    "expected JSON of 'kiel-groups offsets export', lines such as '/consumers/GROUP/offsets/TOPIC/0:42' of Kafka's"
    " ExportZkOffsets, or lines such as 'TOPIC,0,42' of kafka-consumer-groups"
)


@dataclass(frozen=True, slots=True)
class OffsetsFile:
    """
    The content of a file of offsets.

    ``group`` is the group of the offsets, or "" if the file names no group. ``made`` is the time at which the file was
    made, such as ``2026-11-28T13:05:00Z``, or "". ``znodes`` has the data of znodes, with a character for each byte, by
    their paths below ``/kiel-groups/<group>``, such as ``config``. Only the restore file of a deleted group has
    ``znodes``.
    """

    group: str
    offsets: Mapping[TopicPartition, int] = field(default_factory=dict)
    made: str = ""
    znodes: Mapping[str, str] = field(default_factory=dict)

    def encode(self) -> str:
        """Return the file's text: JSON with one partition a line."""
        fields: dict[str, Any] = {
            "version": _VERSION,
            "group": self.group,
            "made": self.made,
            "offsets": {str(partition): offset for partition, offset in sorted(self.offsets.items())},
        }
        if self.znodes:
            fields["znodes"] = dict(sorted(self.znodes.items()))
        return json.dumps(fields, indent=2) + "\n"


def new_file(
    group: str,
    offsets: Mapping[TopicPartition, int],
    *,
    znodes: Mapping[str, str] | None = None,
    at: datetime | None = None,
) -> OffsetsFile:
    """
    Return the content of a new file of these offsets. ``at`` is the time at which the file is made, by default now.
    """
    return OffsetsFile(group, offsets, f"{_utc(at):%Y-%m-%dT%H:%M:%SZ}", znodes or {})


def restore_path(group: str, at: datetime | None = None, *, folder: Path = Path()) -> Path:
    """
    Return the default path of a restore file. No file exists at this path yet.

    The path is in ``folder``, by default the current directory. It has the group's name and the time ``at``, by default
    now.
    """
    name = f"kiel-groups-{quote(group, safe='')[:_LONGEST_PART]}-{_utc(at):%Y%m%dT%H%M%SZ}"
    paths = (folder / f"{name}{'' if number == 1 else f'-{number}'}.json" for number in count(1))
    return next(path for path in paths if not path.exists())


def kafka_lines(group: str, offsets: Mapping[TopicPartition, int]) -> str:
    """Return the offsets in the format of Kafka 0.8's ImportZkOffsets, with one line for each partition."""
    layout = GroupLayout(group)
    return "".join(f"{layout.offset(partition)}:{offset}\n" for partition, offset in sorted(offsets.items()))


def write_offsets_file(path: Path, text: str, *, is_secret: bool = False) -> None:
    """
    Write a new file, and wait until the file is on disk. If ``is_secret``, only the file's owner may read the file.

    Raises:
        ConfigError: The file exists, or cannot be written. Then no part of it is left, as on a full disk.
    """
    file = None
    try:
        mode = 0o600 if is_secret else 0o666
        with open(path, "x", encoding="utf-8", opener=lambda name, flags: os.open(name, flags, mode)) as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
    except FileExistsError:
        raise ConfigError(f"{path} exists, and is not overwritten; give the name of a new file") from None
    except OSError as error:
        if file is not None:
            with suppress(OSError):
                path.unlink()
        raise ConfigError(f"{path} cannot be written: {error.strerror}") from error


def read_offsets_file(path: Path, group: str) -> OffsetsFile:
    """
    Read a file of offsets in any of the three formats.

    Args:
        path: The path of the file.
        group: The group whose offsets are returned, if the file has the offsets of several groups.

    Raises:
        ConfigError: The file cannot be read, is too large, has an illegal line or no offsets, or has the offsets of
            several other groups.
    """
    try:
        with path.open("rb") as file:
            data = file.read(LARGEST_BYTES + 1)
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from error
    return parse_offsets_file(data, str(path), group)


def parse_offsets_file(data: bytes, name: str, group: str) -> OffsetsFile:
    """Parse the bytes of a file of offsets; see ``read_offsets_file``. ``name`` is the file's name for errors."""
    if len(data) > LARGEST_BYTES:
        raise ConfigError(f"{name} is larger than {LARGEST_BYTES >> 20} MiB; {_EXPECTED}")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise ConfigError(f"{name}, line {line}: this is no text; {_EXPECTED}") from None
    parsed = _parse_json(text, name) if text.lstrip().startswith("{") else _parse_lines(text, name, group)
    if not parsed.offsets and not parsed.znodes:
        raise ConfigError(f"{name} has no offsets; {_EXPECTED}")
    return parsed


def _utc(at: datetime | None) -> datetime:
    return datetime.now(UTC) if at is None else at.astimezone(UTC)


def _parse_json(text: str, name: str) -> OffsetsFile:
    try:
        # Two equal keys are a mistake of an editor, and json would keep the last one. Python refuses to convert numbers
        # of thousands of digits.
        fields = json.loads(
            text,
            object_pairs_hook=lambda pairs: _unique(pairs, text, name),
            parse_int=lambda digits: int(digits) if len(digits) <= _MOST_DIGITS else digits,
        )
    except json.JSONDecodeError as error:
        raise ConfigError(f"{name}, line {error.lineno}: {error.msg}; {_EXPECTED}") from None
    except RecursionError:
        raise ConfigError(f"{name} has too many brackets; {_EXPECTED}") from None
    version, group, made = fields.get("version"), fields.get("group"), fields.get("made", "")
    offsets = fields.get("offsets")
    if version != _VERSION:
        at = _place(text, name, "version")
        raise ConfigError(f"{at}: version {version!r:.40} found, expected {_VERSION}, which this kiel-groups reads")
    for key, value in {"group": group, "made": made}.items():
        if not isinstance(value, str):
            raise ConfigError(f"{_place(text, name, key)}: {key!r} should be a text, found {value!r:.80}")
    if not isinstance(offsets, dict):
        raise ConfigError(f"{_place(text, name, 'offsets')}: 'offsets' should be an object, found {offsets!r:.80}")
    found = {}
    for key, offset in offsets.items():
        topic, _, number = key.rpartition(":")
        partition = whole_number(number)
        if not topic or partition is None or type(offset) is not int or not 0 <= offset <= LARGEST_OFFSET:
            raise ConfigError(
                f'{_place(text, name, key)}: {key!r:.300}: {offset!r:.40} found, expected "TOPIC:PARTITION": OFFSET'
            )
        found[TopicPartition(topic, partition)] = offset
    return OffsetsFile(group, found, made, _checked_znodes(fields.get("znodes", {}), text, name))


def _checked_znodes(found: Any, text: str, name: str) -> dict[str, str]:
    if not isinstance(found, dict):
        raise ConfigError(f"{_place(text, name, 'znodes')}: 'znodes' should be an object, found {found!r:.80}")
    for path, data in found.items():
        parts = path.split("/")
        is_legal = parts[0] in RESTORED and not {"", ".", ".."} & {*parts} and "\0" not in path
        if not is_legal or not isinstance(data, str) or max(data, default="") > "\xff":
            raise ConfigError(
                f"{_place(text, name, path)}: {path!r:.300}: {data!r:.40} found, expected the path of a znode below one"
                f" of {', '.join(RESTORED)}, and its data with a character for each byte"
            )
    return found


def _unique(pairs: list[tuple[str, Any]], text: str, name: str) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        twice = next(key for key, times in Counter(key for key, _ in pairs).items() if times > 1)
        raise ConfigError(f"{_place(text, name, twice)}: {twice!r:.300} occurs twice")
    return found


def _place(text: str, name: str, key: str) -> str:
    """Return the file's name and, if found, the number of the first line with the quoted key, as a text."""
    quoted = json.dumps(key), json.dumps(key, ensure_ascii=False)
    lines = (number for number, line in enumerate(text.splitlines(), 1) if any(each in line for each in quoted))
    line = next(lines, None)
    return name if line is None else f"{name}, line {line}"


def _parse_lines(text: str, name: str, group: str) -> OffsetsFile:
    by_group: dict[str, dict[TopicPartition, int]] = {}
    for number, (its_group, partition, offset) in _rows(text.splitlines(), name):
        offsets = by_group.setdefault(its_group, {})
        if partition in offsets:
            raise ConfigError(f"{name}, line {number}: {partition} occurs twice")
        offsets[partition] = offset
    if len(by_group) > 1 and group not in by_group:
        raise ConfigError(f"{name} has offsets of the groups {some(sorted(by_group))}, and none of {group!r}")
    own = group if group in by_group else next(iter(by_group), "")
    return OffsetsFile(own, by_group.get(own, {}))


def _rows(lines: Iterable[str], name: str) -> Iterator[tuple[int, tuple[str, TopicPartition, int]]]:
    """Yield the number of each line that is not blank, with its group (or ""), partition and offset."""
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        match = _ZNODE_LINE.fullmatch(line.strip())
        fields = _columns(line) if match is None else list(match.groups())
        partition = whole_number(fields[2], LARGEST_PARTITION) if len(fields) == 4 else None
        offset = whole_number(fields[3], LARGEST_OFFSET) if len(fields) == 4 else None
        if partition is None or offset is None or not fields[1]:
            raise ConfigError(f"{name}, line {number}: {line[:80]!r} found; {_EXPECTED}")
        yield number, (fields[0], TopicPartition(fields[1], partition), offset)


def _columns(line: str) -> list[str]:
    """
    Split a CSV line of kafka-consumer-groups into four fields: the group, topic, partition and offset.

    A line of three fields gets the group "". If the line is not CSV, or has neither three nor four fields, the result
    does not have four fields. The caller checks the fields themselves.
    """
    try:
        fields = [each.strip() for each in next(csv.reader([line]))]
    except csv.Error:
        return []
    # With several groups, the group is the first column.
    return ["", *fields] if len(fields) == 3 else fields
