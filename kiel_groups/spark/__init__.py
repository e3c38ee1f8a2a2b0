"""
Read and write topics of Kafka 0.8 in Spark 4, with the data source ``kiel`` and the jobs that use it.

Applications register ``KielDataSource`` or call ``archive``, as ``kiel-groups spark`` does. The package needs the extra
``spark``. The driver plans which offsets to read. The workers read and write; a worker never plans a range.
"""

from typing import TYPE_CHECKING, Any

from kiel_groups.lazy_imports import lazy_exports
from kiel_groups.spark.environment import check_libraries

if TYPE_CHECKING:
    from kiel_groups.spark.archive_folders import archive_files
    from kiel_groups.spark.archive_job import ArchivePlan, ArchiveSummary, archive, plan_archive
    from kiel_groups.spark.archive_table import ArchiveSettings
    from kiel_groups.spark.archive_verification import Verification, verify_archive
    from kiel_groups.spark.source import KielDataSource

__all__ = [
    "ArchivePlan",
    "ArchiveSettings",
    "ArchiveSummary",
    "KielDataSource",
    "Verification",
    "archive",
    "archive_files",
    "plan_archive",
    "verify_archive",
]

_HOMES = {
    "kiel_groups.spark.archive_job": ("ArchivePlan", "ArchiveSummary", "archive", "plan_archive"),
    "kiel_groups.spark.archive_table": ("ArchiveSettings",),
    "kiel_groups.spark.archive_folders": ("archive_files",),
    "kiel_groups.spark.archive_verification": ("Verification", "verify_archive"),
    "kiel_groups.spark.source": ("KielDataSource",),
}

_get, __dir__ = lazy_exports(__name__, _HOMES)


def __getattr__(name: str) -> Any:
    if name in __all__:
        check_libraries()
    return _get(name)
