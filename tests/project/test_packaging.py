"""The sdist, the wheel and the editable install are complete. ``scripts/package --try`` tries each extra."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from importlib.metadata import requires
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import pytest

from kiel_groups import __version__
from tests.packages import SOURCES, USES, copy_sources, metadata, program, run

pytestmark = pytest.mark.integration

REPOSITORY = Path(__file__).parents[2]
STATIC = REPOSITORY / "kiel_groups" / "service" / "static"

COMPILED = (
    "kiel_groups/clients/delivery/_steps.",
    "kiel_groups/clients/produce/_batches.",
    "kiel_groups/wire/_messages.",
)

#: The Pythons that the package supports, except this one. Where one is not installed, its test is skipped.
OTHER_PYTHONS = [f"python3.{minor}" for minor in (11, 12, 13) if minor != sys.version_info.minor]

#: The unit tests of what depends on Python's release: compiled code, event loops and threads.
OF_PYTHON = ("wire", "sync", "clients/calls", "clients/delivery", "clients/produce")


class Built(NamedTuple):
    """The sources without git, and what was built from them: the sdist, and the wheel from the sdist."""

    sources: Path
    sdist: Path
    wheel: Path


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    folder = tmp_path_factory.mktemp("built")
    sources = copy_sources(folder / "sources")
    made = folder / "dist"
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", made, folder=sources)
    (sdist,), (wheel,) = made.glob("*.tar.gz"), made.glob("*.whl")
    return Built(sources, sdist, wheel)


def test_the_sdist_has_every_source(built: Built) -> None:
    """The sdist has each file of the package, of its metadata and of its texts, so that it builds without git."""
    with tarfile.open(built.sdist) as archive:
        packed = {name.partition("/")[2] for name in archive.getnames()}
    wanted = {
        str(path.relative_to(REPOSITORY))
        for source in map(REPOSITORY.joinpath, SOURCES)
        for path in (source, *source.rglob("*"))
        if path.is_file() and path.suffix not in (".pyc", ".so")
    }
    assert wanted - packed == set()


def test_a_build_leaves_no_module_for_the_next_wheel(built: Built) -> None:
    """A build in the checkout, such as pip's, leaves no folder whose modules would be in the next wheel."""
    run(sys.executable, "setup.py", "--quiet", "build_py", folder=built.sources)
    assert not (built.sources / "build").exists()


def test_the_metadata_agree(built: Built) -> None:
    """The version and the extras are those of the code, and the licences those of all files in the wheel."""
    found = metadata(built.wheel)
    assert found["Version"] == __version__
    assert f"version: {__version__}\n" in (REPOSITORY / "CITATION.cff").read_text(encoding="utf-8")
    # Those for users; dev and docs are for this repository.
    assert set(found.get_all("Provides-Extra", [])) - {"dev", "docs"} == USES.keys()
    assert found["License-Expression"] == "Apache-2.0 AND 0BSD AND MIT"
    texts = found.get_all("License-File", [])
    assert texts == ["LICENSE", "kiel_groups/service/static/LICENSES.txt"]
    packed = zipfile.ZipFile(built.wheel).namelist()
    assert {f"kiel_groups-{__version__}.dist-info/licenses/{text}" for text in texts} <= set(packed)


def test_each_library_of_the_console_has_its_licence() -> None:
    """The file of licences has a section for each file that another project made, and no other section."""
    made_elsewhere = {re.split(r"-\d", path.name)[0] for path in STATIC.iterdir() if ".min." in path.name}
    sections = re.findall(r"^== (\S+)$", (STATIC / "LICENSES.txt").read_text(encoding="utf-8"), re.MULTILINE)
    assert {section.removesuffix(".org") for section in sections} == made_elsewhere


def test_each_extra_works() -> None:
    """The program of each extra, which ``scripts/package --try`` runs in empty environments, works in this one."""
    # The requirements of the tests lack kerberos, which pip compiles with headers that may be missing.
    absent = {"gssapi"} if find_spec("kerberos") is None else set()
    run(sys.executable, "-I", "-c", program(*USES.keys() - absent), folder=REPOSITORY)


def test_the_wheel_has_every_module_and_data_file(built: Built) -> None:
    """The wheel has every module and data file, and besides these only the compiled modules."""
    packed = {name for name in zipfile.ZipFile(built.wheel).namelist() if ".dist-info/" not in name}
    wanted = {
        str(path.relative_to(REPOSITORY))
        for pattern in ("*.py", "*.pyi", "py.typed", "*.gz", "service/static/*", "service/templates/*")
        for path in (REPOSITORY / "kiel_groups").rglob(pattern)
    }
    wanted.add("pyspark_kiel.py")
    wanted.remove(str((STATIC / "LICENSES.txt").relative_to(REPOSITORY)))
    compiled = {name for name in packed if name.startswith(COMPILED)} - wanted
    assert packed - compiled == wanted
    assert {name.endswith((".so", ".pyd")) for name in compiled} <= {True}
    # With a compiler, all of them are built.
    assert len(compiled) in (0, len(COMPILED))


@pytest.mark.slow
def test_the_wheel_works_in_an_empty_environment(built: Built, tmp_path: Path) -> None:
    """
    In an environment with only the declared requirements, all modules of the wheel can be imported that need no extra,
    the demo has its input, and the command runs. What needs an extra names it. The same holds without the compiled
    modules.
    """
    binaries = installed(built.wheel, tmp_path, sys.executable)
    for _ in with_and_without_compiled_modules(tmp_path):
        assert run(binaries / "python", "-I", "-c", program(), folder=tmp_path).startswith(str(tmp_path))
        assert run(binaries / "kiel-groups", "--version", folder=tmp_path) == f"kiel-groups {__version__}\n"


@pytest.mark.timeout(600)
@pytest.mark.parametrize("python", OTHER_PYTHONS)
def test_the_wheel_works_on_another_python(built: Built, tmp_path: Path, python: str) -> None:
    """The tests of what depends on Python's release pass with the wheel, with and without its compiled modules."""
    if shutil.which(python) is None or subprocess.run([python, "-c", ""], capture_output=True).returncode != 0:
        pytest.skip(f"{python} is not installed")
    binaries = installed(built.wheel, tmp_path, python)
    needed = re.compile(r"(hypothesis|pytest|pytest-timeout|pytest-xdist)[<>=]")
    tools = [each.partition(";")[0] for each in requires("kiel-groups") or () if needed.match(each)]
    run(binaries / "python", "-m", "pip", "install", "--quiet", *tools, folder=tmp_path)
    # Without the package's sources, which would be imported in place of the wheel.
    project = tmp_path / "project"
    shutil.copytree(REPOSITORY / "tests", project / "tests", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(REPOSITORY / "pyproject.toml", project)
    tests = [f"tests/unit/{name}" for name in OF_PYTHON]
    # They need pyarrow.
    tests.append("--ignore=tests/unit/wire/message_sets/test_record_columns.py")
    for _ in with_and_without_compiled_modules(tmp_path):
        run(binaries / "python", "-m", "pytest", "-q", *tests, folder=project)


def installed(wheel: Path, folder: Path, python: str) -> Path:
    """Install the wheel with its requirements in a new environment, and return the folder of its programs."""
    run(python, "-m", "venv", "env", folder=folder)
    binaries = folder / "env" / "bin"
    run(binaries / "python", "-m", "pip", "install", "--quiet", wheel, folder=folder)
    return binaries


def with_and_without_compiled_modules(folder: Path) -> Iterator[None]:
    """Yield, delete the compiled modules that ``installed`` has installed in ``folder``, and yield once more."""
    yield
    for compiled in folder.glob("env/lib/*/site-packages/kiel_groups/**/*.so"):
        compiled.unlink()
    yield


@pytest.mark.slow
def test_spark_finds_an_editable_install_from_anywhere(built: Built, tmp_path: Path) -> None:
    """
    Spark finds an editable install, because its module is listed in a folder on the path. The import hook of a build
    backend would list none.
    """
    run(sys.executable, "-m", "venv", "env", folder=tmp_path)
    python = tmp_path / "env" / "bin" / "python"
    options = ("--quiet", "--use-pep517", "--no-deps")
    run(python, "-m", "pip", "install", *options, "--editable", built.sources, folder=tmp_path)
    listing = (
        "import pkgutil; print([each.name for each in pkgutil.iter_modules() if each.name.startswith('pyspark_')])"
    )
    assert run(python, "-c", listing, folder=tmp_path) == "['pyspark_kiel']\n"
