"""Metadata of the package; ``pyproject.toml`` holds the build backend and the tools' settings only."""

import sysconfig
from pathlib import Path

from setuptools import Extension, find_packages, setup

HERE = Path(__file__).parent
WIRE = "kiel_groups/wire"

# Reads messages several times as fast. Where it cannot be compiled the package is installed without it, and works. One
# build serves every Python from 3.11 on, but those without the interpreter's lock, which it relies on.
MESSAGES = Extension(
    "kiel_groups.wire._messages",
    sources=[
        f"{WIRE}/_{name}.c" for name in ("messages", "check", "selection", "columns", "records", "values", "encode")
    ],
    depends=[f"{WIRE}/_{name}.h" for name in ("functions", "message", "crc32", "selection", "blob_object")],
    # No other library of the process may replace the functions that the sources share.
    extra_compile_args=["-fvisibility=hidden"],
    py_limited_api=True,
    optional=True,
)
# Takes the records of loops, on the same terms.
STEPS = Extension(
    "kiel_groups.clients.delivery._steps",
    sources=["kiel_groups/clients/delivery/_steps.c"],
    py_limited_api=True,
    optional=True,
)
# Adds records to a producer's batches, on the same terms.
BATCHES = Extension(
    "kiel_groups.clients.produce._batches",
    sources=["kiel_groups/clients/produce/_batches.c"],
    py_limited_api=True,
    optional=True,
)
FREE_THREADED = bool(sysconfig.get_config_var("Py_GIL_DISABLED"))

ARROW = ["pyarrow>=15"]
#: For ZooKeeper with SASL.
SASL = ["pure-sasl>=0.6.2"]
MIRROR = ["confluent-kafka>=2.12"]
SERVICE = ["prometheus-client>=0.20"]
#: The documentation site; Markdown is for the decision records.
DOCS = ["sphinx>=8.1", "furo>=2024.8", "myst-parser>=4.0"]
#: PySpark does not ask for pyarrow by itself.
SPARK = ["pyspark>=4.0", *ARROW]

setup(
    name="kiel-groups",
    version="0.1.0",
    description="Consumer groups for Kafka 0.8.x: a partition allocator on ZooKeeper and Tornado consumers",
    long_description=(HERE / "README.rst").read_text(encoding="utf-8"),
    long_description_content_type="text/x-rst",
    license="Apache-2.0",
    # tornado 6.6 and cramjam 2.14 ask for 3.11.
    python_requires=">=3.11",
    # Spark finds data sources by listing the folders of sys.path: an editable install must add this one to it.
    package_dir={"": "."},
    packages=find_packages(include=["kiel_groups", "kiel_groups.*"]),
    # Spark looks for data sources in modules of such names.
    py_modules=["pyspark_kiel"],
    ext_modules=[] if FREE_THREADED else [MESSAGES, STEPS, BATCHES],
    options={} if FREE_THREADED else {"bdist_wheel": {"py_limited_api": "cp311"}},
    package_data={
        "kiel_groups": ["py.typed"],
        "kiel_groups.clients.delivery": ["*.pyi"],
        "kiel_groups.clients.produce": ["*.pyi"],
        "kiel_groups.wire": ["*.pyi"],
        "kiel_groups.demo": ["*.txt.gz"],
        "kiel_groups.service": ["static/*", "templates/*"],
    },
    install_requires=[
        "kazoo>=2.11",
        "tornado>=6.5",
        "six>=1.16",
        # Its compiled record codec only; the public name is stable since 0.12.
        "aiokafka>=0.12",
        "cramjam>=2.8",
        "click>=8.1",
        "rich>=13.7",
    ],
    extras_require={
        "arrow": ARROW,
        "docs": [*DOCS, *SPARK],
        "mirror": MIRROR,
        "sasl": SASL,
        "spark": SPARK,
        "service": SERVICE,
        "dev": [
            *SPARK,
            *SERVICE,
            *MIRROR,
            *SASL,
            *DOCS,
            # The accessibility of pages in a browser, which is Debian's Chromium.
            "axe-playwright-python>=0.1.7",
            "build>=1.2",
            # Carries the schema of compose files.
            "check-jsonschema>=0.31",
            "docutils>=0.20",
            "hypothesis>=6.100",
            "jsonschema>=4.20",
            # A public client of Kafka Connect's REST interface.
            "kafka-connect-py>=1.0",
            "mypy>=1.14",
            "openapi-spec-validator>=0.7",
            "playwright>=1.45",
            # An example stores its results in PostgreSQL.
            "psycopg[binary]>=3.2",
            # pytest-xdist 3.8 does not group tests (--dist=loadgroup) under pytest 9.2.
            "pytest>=8.2,<9.2",
            "pytest-timeout>=2.3",
            "pytest-xdist>=3.6",
            "ruamel.yaml>=0.18",
            "ruff>=0.9",
            # Requests to the service that follow from its OpenAPI description.
            "schemathesis>=4.1",
            "types-six>=1.16",
        ],
    },
    entry_points={
        "console_scripts": ["kiel-groups = kiel_groups.cli:main"],
        "kiel_groups.connectors": [
            "FileStreamSource = kiel_groups.workers.shipped.file_stream_source:FileStreamSourceConnector",
            "FileStreamSink = kiel_groups.workers.shipped.file_stream_sink:FileStreamSinkConnector",
            "HttpSink = kiel_groups.workers.shipped.http_sink:HttpSinkConnector",
            "Mirror = kiel_groups.mirror.connector:MirrorConnector",
        ],
    },
    classifiers=[
        "License :: OSI Approved :: Apache Software License",
        "Operating System :: POSIX :: Linux",
        "Programming Language :: Python :: 3.11",
        "Programming Language :: Python :: 3.12",
        "Programming Language :: Python :: 3.13",
        "Topic :: System :: Distributed Computing",
        "Typing :: Typed",
    ],
)
