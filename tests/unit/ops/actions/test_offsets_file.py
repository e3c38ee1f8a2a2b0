"""Files of offsets: what is written is read back, in each format, and each mistake is named with its line."""

import errno
import os
from datetime import UTC, datetime
from pathlib import Path

import pytest

from kiel_groups.errors import ConfigError
from kiel_groups.model import TopicPartition
from kiel_groups.ops.actions.offsets_file import (
    LARGEST_BYTES,
    OffsetsFile,
    kafka_lines,
    new_file,
    parse_offsets_file,
    read_offsets_file,
    restore_path,
    write_offsets_file,
)

AT = datetime(2026, 11, 28, 13, 5, tzinfo=UTC)
OFFSETS = {TopicPartition("clicks", 1): 2**63 - 1, TopicPartition("clicks", 0): 7, TopicPartition("a.b_c-d", 12): 0}


def parse(text: str, group: str = "shop") -> OffsetsFile:
    return parse_offsets_file(text.encode(), "o.txt", group)


@pytest.mark.parametrize("znodes", [{}, {"config": '{"store":"zookeeper"}', "weights": "\xff\0", "connect": ""}])
def test_our_format_is_read_back(tmp_path: Path, znodes: dict[str, str]) -> None:
    made = new_file("shop", OFFSETS, znodes=znodes, at=AT)
    write_offsets_file(tmp_path / "o.json", made.encode())
    assert read_offsets_file(tmp_path / "o.json", "another") == made
    assert made.made == "2026-11-28T13:05:00Z"


def test_our_format_is_stable() -> None:
    """Files of an older version must be readable for ever."""
    assert new_file("shop", {TopicPartition("clicks", 0): 7}, znodes={"config": "{}"}, at=AT).encode() == (
        '{\n  "version": 1,\n  "group": "shop",\n  "made": "2026-11-28T13:05:00Z",\n'
        '  "offsets": {\n    "clicks:0": 7\n  },\n  "znodes": {\n    "config": "{}"\n  }\n}\n'
    )


def test_lines_of_kafkas_tool_are_read_back() -> None:
    text = kafka_lines("shop", OFFSETS)
    assert text.splitlines()[1] == "/consumers/shop/offsets/clicks/0:7"
    assert parse(text) == OffsetsFile("shop", OFFSETS)
    assert parse(text, "another").group == "shop"


def test_of_several_groups_the_wanted_one_is_read() -> None:
    text = kafka_lines("shop", OFFSETS) + "\n" + kafka_lines("audit", {TopicPartition("clicks", 0): 1})
    assert parse(text, "audit").offsets == {TopicPartition("clicks", 0): 1}
    with pytest.raises(ConfigError, match="the groups audit, shop, and none of 'other'"):
        parse(text, "other")


@pytest.mark.parametrize(
    "text", ['"clicks",0,7\r\nclicks,1,8\r\n', "shop,clicks,0,7\nshop,clicks,1,8", "\ufeffclicks, 0, 7\nclicks,1,8"]
)
def test_lines_of_kafka_consumer_groups(text: str) -> None:
    assert parse(text).offsets == {TopicPartition("clicks", 0): 7, TopicPartition("clicks", 1): 8}


GOOD = '{"version": 1, "group": "shop", "offsets": {\n'


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("", "o.txt has no offsets; expected JSON of"),
        ("{}", "o.txt: version None found, expected 1"),
        ('{"version": 2}', "o.txt, line 1: version 2 found"),
        (GOOD + '"clicks:0": 7,\n}}', "o.txt, line 3: .*; expected JSON of"),
        (GOOD + '"clicks:0": "7"}}', "o.txt, line 2: 'clicks:0': '7' found, expected"),
        (GOOD + '"clicks:0": true}}', "line 2: 'clicks:0': True found"),
        (GOOD + '"clicks:0": -1}}', "line 2: 'clicks:0': -1 found"),
        (GOOD + '"clicks:0": 9223372036854775808}}', "line 2: 'clicks:0': 9223372036854775808 found"),
        (GOOD + '"clicks:0": ' + "9" * 5000 + "}}", "line 2: 'clicks:0': '99999"),
        (GOOD + '"clicks": 1}}', "line 2: 'clicks': 1 found"),
        (GOOD + '"clicks:0": 7,\n"clicks:0": 8}}', "line 2: 'clicks:0' occurs twice"),
        ('{"version": 1,\n"group": 5, "offsets": {}}', "line 2: 'group' should be a text, found 5"),
        ('{"version": 1, "group": "g",\n"offsets": []}', "line 2: 'offsets' should be an object"),
        ('{"version": 1, "group": "g", "offsets": {}}', "o.txt has no offsets"),
        ('{"version": 1, "group": "g", "offsets": {},\n"znodes": 5}', "line 2: 'znodes' should be an object, found 5"),
        *(
            (
                f'{{"version": 1, "group": "g", "offsets": {{}}, "znodes": {{\n"{path}": {data}}}}}',
                "line 2: '.* expected",
            )
            for path, data in (("members/x", '""'), ("connect/../x", '""'), ("config", "5"), ("config", '"\u20ac"'))
        ),
        ('{"a":' * 100_000, "o.txt has too many brackets"),
        ("/consumers/shop/offsets/clicks/0:7\n/consumers/shop/offsets/clicks/0:8", "line 2: clicks:0 occurs twice"),
        ("/consumers/shop/offsets/clicks/0:7\n/consumers/shop/offsets/clicks/1-0:8", "line 2: '/consumers/"),
        ("clicks,0,7\nclicks,0", "line 2: 'clicks,0' found; expected"),
        ("clicks,0,-7", "line 1: 'clicks,0,-7' found; expected"),
        ('"clicks\0,0,7', "line 1: "),
        ("clicks,99999999999,7", "line 1: "),
    ],
)
def test_a_mistake_is_named_with_its_line(text: str, error: str) -> None:
    with pytest.raises(ConfigError, match=error):
        parse(text)


def test_files_that_are_no_text_or_too_large(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="line 2: this is no text"):
        parse_offsets_file(b"clicks,0,7\n\xff\xfe", "o.txt", "shop")
    with (tmp_path / "large").open("wb") as file:
        file.truncate(LARGEST_BYTES + 1)
    with pytest.raises(ConfigError, match="larger than 64 MiB"):
        read_offsets_file(tmp_path / "large", "shop")
    with pytest.raises(ConfigError, match="missing cannot be read: No such file"):
        read_offsets_file(tmp_path / "missing", "shop")


def test_no_file_is_overwritten(tmp_path: Path) -> None:
    (tmp_path / "o.json").write_text("precious")
    with pytest.raises(ConfigError, match="exists, and is not overwritten"):
        write_offsets_file(tmp_path / "o.json", "new")
    assert (tmp_path / "o.json").read_text() == "precious"
    with pytest.raises(ConfigError, match="cannot be written: No such file"):
        write_offsets_file(tmp_path / "missing" / "o.json", "new")


def test_no_part_of_a_file_is_left_on_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing was changed then, and the file would be taken for one that restores something."""

    def fail(_descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(ConfigError, match="cannot be written: No space left"):
        write_offsets_file(tmp_path / "restore.json", "{}")
    assert list(tmp_path.iterdir()) == []


def test_the_name_of_a_restore_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert restore_path("shop", AT) == Path("kiel-groups-shop-20261128T130500Z.json")
    assert restore_path("../a b", AT) == Path("kiel-groups-..%2Fa%20b-20261128T130500Z.json")
    assert len(restore_path("x" * 5000, AT).name) < 255
    restore_path("shop", AT).touch()
    assert restore_path("shop", AT) == Path("kiel-groups-shop-20261128T130500Z-2.json")
