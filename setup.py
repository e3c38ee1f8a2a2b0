"""The compiled modules, which are optional; ``pyproject.toml`` has the metadata of the package."""

import sysconfig
from tempfile import TemporaryDirectory

from setuptools import Extension, setup

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

# pip builds in the checkout. Modules that were deleted since would still be in its folder "build", and so in the next
# wheel: the folder must not stay.
with TemporaryDirectory() as build:
    options = {"build": {"build_base": build}}
    if not FREE_THREADED:
        options["bdist_wheel"] = {"py_limited_api": "cp311"}
    setup(ext_modules=[] if FREE_THREADED else [MESSAGES, STEPS, BATCHES], options=options)
