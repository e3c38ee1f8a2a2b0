"""Settings name secrets of files and variables, and checks, answers and errors never show the values."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from kiel_groups.errors import ConfigError
from kiel_groups.workers.plugins.config_definition import ConfigDefinition, ConfigKey, Password, Settings, one_of
from kiel_groups.workers.plugins.connector_checks import (
    checked_config,
    masked,
    named_topics,
    run_settings,
    secret_values,
    validation_report,
)
from kiel_groups.workers.plugins.interfaces import SinkConnector, SinkTask
from kiel_groups.workers.plugins.secret_references import SecretReferences, parse_java_properties

pytestmark = pytest.mark.unit

SECRET = "hunter2 & co"


class Task(SinkTask):
    def put(self, records: Any) -> None:
        """Take nothing."""


class Sink(SinkConnector):
    """Quotes its settings in errors, as careless plugins do."""

    task_class = Task
    config = ConfigDefinition(
        ConfigKey("url", default=""),
        ConfigKey("login", "password", Password("")),
        ConfigKey("port", "int", 80),
        ConfigKey("mode", default="a", validator=one_of("a", "b")),
        ConfigKey("format", "class", None),
    )

    @classmethod
    def check(cls, settings: Settings) -> Mapping[str, str]:
        if settings["url"].startswith("raise"):
            raise ValueError(f"cannot use {settings['login'].value!r}")
        return {"url": f"{settings['url']} is wrong"} if settings["url"].startswith("wrong") else {}

    def task_configs(self, most: int) -> list[dict[str, str]]:
        return [{}]


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """Return a directory of secrets, as Kubernetes mounts it: with links to a folder within it."""
    folder = tmp_path / "secrets"
    (folder / "..data").mkdir(parents=True)
    (folder / "..data" / "db.properties").write_text(f"# by the operator\npassword = {SECRET}\nport=5432\nuser: u5er\n")
    (folder / "..data" / "whole").write_text(f"{SECRET}\n")
    for name in ("db.properties", "whole"):
        (folder / name).symlink_to(Path("..data") / name)
    return folder


@pytest.fixture
def references(directory: Path, monkeypatch: pytest.MonkeyPatch) -> SecretReferences:
    monkeypatch.setenv("DB_PASSWORD", SECRET)
    monkeypatch.setenv("OTHER", SECRET)
    monkeypatch.setenv("DB_ODD", "\udcff")  # a byte that is not UTF-8
    return SecretReferences(directory, ["DB_*", "UNSET"])


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("${file:db.properties:password}", SECRET),
        ("${file:whole}", SECRET),
        ("${file:..data/whole}", SECRET),
        ("${env:DB_PASSWORD}", SECRET),
        ("tcp://${file:db.properties:user}@h:${file:db.properties:port}/x", "tcp://u5er@h:5432/x"),
        ("old.${topic} $${file} ${vault:a:b}", "old.${topic} $${file} ${vault:a:b}"),
    ],
)
def test_references_have_values(text: str, value: str, references: SecretReferences) -> None:
    """A text may have several references. Other texts with braces are as they were."""
    found = references.resolve({"s": text})
    assert (found.texts, found.errors) == ({"s": value}, {})
    assert value not in repr(found)


def test_values_are_not_read_again_for_references(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A value that looks like a reference is a value."""
    monkeypatch.setenv("A", "${env:B}")
    assert SecretReferences(variables=["A", "B"]).resolve({"s": "${env:A}"}).texts == {
        "s": "${env:A}".replace("A", "B")
    }


def test_values_in_json_are_escaped(directory: Path) -> None:
    """Quotes and backslashes of a password do not end the text of a JSON object."""
    (directory / "odd").write_text('a"\\b')
    found = SecretReferences(directory).resolve({"json": '{"p": "${file:odd}"}', "text": "{${file:odd}}"})
    assert found.texts == {"json": '{"p": "a\\"\\\\b"}', "text": '{a"\\b}'}
    assert {'a"\\b', 'a\\"\\\\b'} <= found.secrets


def test_a_changed_file_has_its_new_value(references: SecretReferences, directory: Path) -> None:
    """Each call reads the files again."""
    assert references.resolve({"s": "${file:whole}"}).texts["s"] == SECRET
    (directory / "..data" / "whole").write_text("renewed")
    assert references.resolve({"s": "${file:whole}"}).texts["s"] == "renewed"


def test_a_link_may_change_when_its_file_is_opened(
    references: SecretReferences, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kubernetes replaces the link to the folder of a mount, and removes the former folder. A link out has no value."""
    (directory.parent / "outside").write_text(SECRET)
    (directory / "..data").rename(directory / "..1")
    (directory / "..data").symlink_to("..1")
    (directory / "..2").mkdir()
    (directory / "..2" / "whole").write_text("renewed")
    targets = ["..2"]
    open_file = os.open

    def opened(path: Any, *flags: Any, **folder: Any) -> int:
        if targets and Path(path) == directory / "whole":
            (directory / "..new").symlink_to(targets.pop(0))
            (directory / "..new").rename(directory / "..data")
            if (directory / "..1").exists():
                shutil.rmtree(directory / "..1")
                raise FileNotFoundError
        return open_file(path, *flags, **folder)

    monkeypatch.setattr(os, "open", opened)
    (directory.parent / "whole").symlink_to("outside")
    assert references.resolve({"s": "${file:whole}"}).texts == {"s": "renewed"}
    targets.append("..")
    assert "a link out of the directory" in references.resolve({"s": "${file:whole}"}).errors["s"]


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("${file:gone:k}", r"/secrets/gone does not exist on this worker; create it on all workers of the group"),
        ("${file:db.properties:pasword}", r"no such key; expected a line KEY=VALUE with this key"),
        ("${file:db.properties:zzz}", r"no such key; expected a line KEY=VALUE with this key"),
        ("${file:db.properties:}", r"no such key"),
        ("${file:}", r"expected the path of a file below the directory of secrets"),
        ("${file:/etc/passwd}", r"below the directory of secrets, which neither begins with '/' nor has '\.\.'"),
        ("${file:../outside}", r"below the directory of secrets"),
        ("${file:..data/../../outside:k}", r"below the directory of secrets"),
        ("${file:a\0b}", r"below the directory of secrets"),
        ("${file:link}", r"the file is a link out of the directory of secrets"),
        ("${file:folder/outside}", r"the file is a link out of the directory of secrets"),
        ("${file:..data}", r"/\.\.data cannot be read on this worker: Is a directory"),
        ("${file:fifo}", r"/fifo is not a regular file"),
        ("${file:large}", r"/large has more than 65,536 bytes"),
        ("${file:binary}", r"/binary is not a text in UTF-8"),
        ("${file:" + "n" * 300 + "}", r"cannot be read on this worker: File name too long"),
        ("${file:wrong:k}", r"the file is not in the format of Java's properties: a '\\u' is not followed by four"),
        ("${env:OTHER}", r"not allowed on this worker; start all .* with --secrets-env DB_\*,UNSET,OTHER$"),
        ("${env:UNSET}", r"the variable is not set on this worker; set it on all workers of the group"),
        ("${env:DB_ODD}", r"the variable, or its name, is not a text in UTF-8 on this worker"),
        ("${env:DB_\ud83d}", r"the variable, or its name, is not a text in UTF-8 on this worker"),
        ("${file:half:k}", r"a '\\u' is half a character, and the other half does not follow"),
        ("${env:}", r"the variable is not allowed"),
        ("${file:whole", r"\$\{file: begins a reference that is not complete; expected \$\{file:NAME:KEY\},"),
        ("${file:${env:DB_PASSWORD}}", r"begins a reference that is not complete"),
        pytest.param(
            "${file:whole}" * 100_000,
            r"the values of all references have more than 1,048,576 characters",
            id="many",
        ),
    ],
)
def test_references_without_values(text: str, error: str, references: SecretReferences, directory: Path) -> None:
    """The error names the setting, the reference, and what to do. It has no value, and no path leads out."""
    (directory.parent / "outside").write_text(f"k={SECRET}")
    (directory / "link").symlink_to("../outside")
    (directory / "folder").symlink_to("..")
    os.mkfifo(directory / "fifo")
    (directory / "large").write_bytes(b"x" * 65_537)
    (directory / "binary").write_bytes(b"\xff")
    (directory / "wrong").write_text("k=\\u12")
    (directory / "half").write_text("k=\\ud83d")
    with pytest.raises(ConfigError, match=error) as caught:
        run_settings(Sink, {"name": "c", "connector.class": "x", "topics": "t", "login": text}, None, references)
    assert str(caught.value).startswith(f"login: {text[:6]}")
    assert SECRET not in str(caught.value)
    assert len(str(caught.value)) < 1_000
    # Errors are shown without what resembles a secret, and this one has none.
    (shown,) = [each["value"]["errors"] for each in report(references, login=text) if each["value"]["name"] == "login"]
    assert shown == [str(caught.value)]


def test_a_directory_in_place_of_a_file_stays_open_for_no_one(references: SecretReferences) -> None:
    """Else, a user could use up the worker's descriptors."""

    def next_descriptor() -> int:
        found = os.open(os.devnull, os.O_RDONLY)
        os.close(found)
        return found

    before = next_descriptor()
    assert references.resolve({"a": "${file:.}", "b": "${file:..data}"}).errors.keys() == {"a", "b"}
    assert next_descriptor() == before


def test_each_file_is_read_once(references: SecretReferences, monkeypatch: pytest.MonkeyPatch) -> None:
    """Many spellings of a large file do not take memory for each of them."""
    read: list[str] = []
    text_of_file = SecretReferences.text_of_file

    def counted(self: SecretReferences, name: str) -> str:
        read.append(name)
        return text_of_file(self, name)

    monkeypatch.setattr(SecretReferences, "text_of_file", counted)
    found = references.resolve({"a": "${file:whole}${file:.//./whole}", "b": "${file:./whole:hunter2}"})
    assert (found.texts, found.errors) == ({"a": SECRET * 2, "b": "& co"}, {})
    assert read == ["whole"]


def test_the_error_about_a_missing_key_shows_no_secret(references: SecretReferences, directory: Path) -> None:
    """Of a file that is a password by itself, the only key is the password."""
    (directory / "plain").write_text("passw0rd")
    assert "passw0rd" not in references.resolve({"a": "${file:plain:password}"}).errors["a"]


def report(references: SecretReferences, **config: str) -> list[dict[str, Any]]:
    whole = {"name": "c", "connector.class": "x", "topics": "t", **config}
    found: list[dict[str, Any]] = validation_report(Sink, whole, references)["configs"]
    return found


def test_without_a_directory_each_reference_is_an_error() -> None:
    """So a configuration with references does not run with their texts as passwords."""
    found = checked_config(Sink, {"login": "${file:a:b}", "url": "${env:HOME}"})
    assert "login: ${file:a:b}: this worker has no directory of secrets; start all" in found.errors["login"][0]
    assert "--secrets-env HOME" in found.errors["url"][0]


def test_a_directory_must_exist(tmp_path: Path) -> None:
    """A worker does not start with a wrong directory, nor with one text for the variables."""
    with pytest.raises(ConfigError, match=r"secrets: '.*/gone' is not a directory"):
        SecretReferences(tmp_path / "gone")
    with pytest.raises(ConfigError, match="secrets: the text 'ABC' given"):
        SecretReferences(variables="ABC")


def test_standard_settings_and_classes_take_no_references(references: SecretReferences) -> None:
    """Parts of a worker without the secrets read them, and an import must not depend on a secret."""
    config = {"name": "c", "connector.class": "x", "topics": "${file:whole}", "format": "${env:DB_PASSWORD}"}
    assert checked_config(Sink, config, references).errors == {
        "topics": ("topics: ${file:whole} given; this setting takes no references",),
        "format": ("format: ${env:DB_PASSWORD} given; this setting takes no references",),
    }
    assert named_topics(Sink, config) == {}


def test_checks_have_values_and_show_references(references: SecretReferences) -> None:
    """The connector's check gets the values; its errors, and those about types, quote references or nothing."""
    config = {
        "name": "c",
        "connector.class": "x",
        "topics": "t",
        "login": "${file:whole}",
        "port": "${env:DB_PASSWORD}",
    }
    assert checked_config(Sink, config, references).errors == {
        "port": ("port: the value of '${env:DB_PASSWORD}' is not legal; expected a whole number of 32 bits",)
    }
    config |= {"port": "${file:db.properties:port}", "mode": "${file:db.properties:user}"}
    (error,) = checked_config(Sink, config, references).errors["mode"]
    assert error.endswith("is not legal; expected a text: one of a, b")
    config |= {"mode": "b", "url": "wrong ${file:whole}"}
    assert checked_config(Sink, config, references).errors == {"url": ("wrong [hidden] is wrong",)}
    config |= {"url": "raise"}
    assert checked_config(Sink, config, references).errors == {
        "connector.class": ("connector.class: Sink.check raised ValueError: cannot use '[hidden]'",)
    }
    config |= {"url": "right"}
    settings = checked_config(Sink, config, references).settings
    assert (settings["login"], settings["port"]) == (Password(SECRET), 5432)
    shown = {each["value"]["name"]: each["value"]["value"] for each in report(references, **config)}
    assert (shown["login"], shown["port"]) == ("${file:whole}", "${file:db.properties:port}")


def test_references_are_shown_and_texts_around_them_are_not(references: SecretReferences) -> None:
    """Users see which secret a setting names. A password with a reference in it is hidden as a whole."""
    config = {"login": " ${file:whole} ", "api.key": "${env:DB_PASSWORD}", "url": "http://u:${file:whole}@h/"}
    assert masked(config, Sink.config) == config | {"url": "http://[hidden]@h/"}
    assert masked({"login": "x${file:whole}"}, Sink.config) == {"login": "[hidden]"}
    assert masked({"login": "${file:whole}"}, None) == {"login": "${file:whole}"}
    # An error about a reference may quote it.
    assert secret_values({"login": "${file:whole}"}, Sink.config) == set()


def test_runs_know_the_secrets_that_errors_must_not_have(references: SecretReferences) -> None:
    """These are values of references in all forms, and declared passwords; not values that are common elsewhere."""
    config = {"name": "c", "connector.class": "x", "topics": "t", "login": "pw", "url": "${file:db.properties:user}"}
    found = run_settings(Sink, config, None, references)
    assert (found.texts, found.referenced, found.secrets) == ({"url": "u5er"}, {"u5er"}, {"u5er", "pw"})
    task = run_settings(Sink, config, {"login": "${file:whole}", "port": "${file:db.properties:port}"}, references)
    assert {SECRET, "hunter2%20%26%20co", "5432"} <= task.referenced
    assert task.settings["port"] == 5432


def test_references_of_other_providers_are_warnings() -> None:
    """Kafka Connect's users may expect further providers. Their texts are used as they are, as there."""
    found = checked_config(Sink, {"login": "${directory:/run/secrets:login}", "url": "old.${topic}"})
    assert "login: ${directory:...} is used as it is; references begin with ${file: or ${env:" in found.warnings
    assert len(found.warnings) == 1


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("a=b\nc:d\ne f\ng = h \n i:= j", {"a": "b", "c": "d", "e": "f", "g": "h ", "i": "= j"}),
        ("# x=y\n ! z\n\n\t\na", {"a": ""}),
        ("a=b\\\n   c\r\nd=e\\\\\nf=g\\\r\n#h", {"a": "bc", "d": "e\\", "f": "g#h"}),
        ("a\\ b\\=c\\:=d\\t\\q\\u00e9\\ud83d\\ude00", {"a b=c:": "d\tqé😀"}),
        ("a=\u2028b\x0bc\u0085", {"a": "\u2028b\x0bc\u0085"}),
        ("=v\na=1\na=2\nend=\\", {"": "v", "a": "2", "end": ""}),
    ],
)
def test_files_are_read_as_java_reads_properties(text: str, found: dict[str, str]) -> None:
    """The expected values are those of ``java.util.Properties``."""
    assert parse_java_properties(text) == found
