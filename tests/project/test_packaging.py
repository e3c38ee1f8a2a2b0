"""The wheel and the editable install are complete."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from importlib.metadata import requires
from pathlib import Path

import pytest

from kiel_groups import __version__

pytestmark = pytest.mark.integration

REPOSITORY = Path(__file__).parents[2]
SOURCES = ("setup.py", "pyproject.toml", "README.rst", "LICENSE", "kiel_groups", "pyspark_kiel.py")

COMPILED = (
    "kiel_groups/clients/delivery/_steps.",
    "kiel_groups/clients/produce/_batches.",
    "kiel_groups/wire/_messages.",
)

#: The Pythons that the package supports, except this one. Where one is not installed, its test is skipped.
OTHER_PYTHONS = [f"python3.{minor}" for minor in (11, 12, 13) if minor != sys.version_info.minor]

#: The unit tests of what depends on Python's release: compiled code, event loops and threads.
OF_PYTHON = ("wire", "sync", "clients/calls", "clients/delivery", "clients/produce")

_USE = """
import importlib, pkgutil, kiel_groups
from kiel_groups.demo.records import load_records
for name in kiel_groups.__all__:
    getattr(kiel_groups, name)
for module in pkgutil.walk_packages(kiel_groups.__path__, "kiel_groups."):
    needs_a_library = module.name.startswith("kiel_groups.spark.")
    needs_a_library |= module.name.endswith((".arrow_arrays", ".group_metrics"))
    needs_a_library |= module.name.startswith("kiel_groups.mirror.") and module.name.endswith(
        (".back", ".group_offsets", ".target", ".mirror_verification", ".writer")
    )
    if not module.name.endswith("__main__") and not needs_a_library:
        importlib.import_module(module.name)
try:
    kiel_groups.spark.KielDataSource
except kiel_groups.errors.ConfigError as error:
    assert "kiel-groups[spark]" in str(error)
else:
    raise AssertionError("a source without Spark")
assert len(load_records()) == 100_000
print(kiel_groups.__file__)
"""


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Copy the sources of the package without the files of earlier builds."""
    sources = tmp_path_factory.mktemp("sources")
    for name in SOURCES:
        source = REPOSITORY / name
        if source.is_dir():
            shutil.copytree(source, sources / name, ignore=shutil.ignore_patterns("__pycache__", "*.so"))
        else:
            shutil.copy(source, sources)
    return sources


@pytest.fixture(scope="module")
def wheel(sources: Path) -> Path:
    run(sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", "dist", ".", folder=sources)
    (built,) = (sources / "dist").iterdir()
    return built


def run(*command: object, folder: Path) -> str:
    # With PYTHONPATH, the modules of the checkout would be imported.
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run([*map(str, command)], cwd=folder, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_wheel_has_every_module_and_data_file(wheel: Path) -> None:
    """The wheel has every module and data file, and besides these only the compiled modules."""
    packed = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    wanted = {
        str(path.relative_to(REPOSITORY))
        for pattern in ("*.py", "*.pyi", "py.typed", "*.gz", "service/static/*", "service/templates/*")
        for path in (REPOSITORY / "kiel_groups").rglob(pattern)
    }
    wanted.add("pyspark_kiel.py")
    compiled = {name for name in packed if name.startswith(COMPILED)} - wanted
    assert packed - compiled == wanted
    assert {name.endswith((".so", ".pyd")) for name in compiled} <= {True}
    # With a compiler, all of them are built.
    assert len(compiled) in (0, len(COMPILED))


def test_the_wheel_works_in_an_empty_environment(wheel: Path, tmp_path: Path) -> None:
    """
    In an environment with only the declared requirements, all modules of the wheel can be imported, the demo has its
    input, and the command runs. The same holds without the compiled modules.
    """
    binaries = installed(wheel, tmp_path, sys.executable)
    for _ in with_and_without_compiled_modules(tmp_path):
        assert run(binaries / "python", "-I", "-c", _USE, folder=tmp_path).startswith(str(tmp_path))
        assert run(binaries / "kiel-groups", "--version", folder=tmp_path) == f"kiel-groups {__version__}\n"


@pytest.mark.timeout(600)
@pytest.mark.parametrize("python", OTHER_PYTHONS)
def test_the_wheel_works_on_another_python(wheel: Path, tmp_path: Path, python: str) -> None:
    """The tests of what depends on Python's release pass with the wheel, with and without its compiled modules."""
    if shutil.which(python) is None or subprocess.run([python, "-c", ""], capture_output=True).returncode != 0:
        pytest.skip(f"{python} is not installed")
    binaries = installed(wheel, tmp_path, python)
    needed = re.compile(r"(hypothesis|pytest|pytest-timeout)[<>=]")
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


def test_spark_finds_an_editable_install_from_anywhere(sources: Path, tmp_path: Path) -> None:
    """
    Spark finds an editable install, because its module is listed in a folder on the path. The import hook of a build
    backend would list none.
    """
    run(sys.executable, "-m", "venv", "env", folder=tmp_path)
    python = tmp_path / "env" / "bin" / "python"
    run(python, "-m", "pip", "install", "--quiet", "--use-pep517", "--no-deps", "--editable", sources, folder=tmp_path)
    listing = (
        "import pkgutil; print([each.name for each in pkgutil.iter_modules() if each.name.startswith('pyspark_')])"
    )
    assert run(python, "-c", listing, folder=tmp_path) == "['pyspark_kiel']\n"
