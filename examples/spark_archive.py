"""
Run the archive job by spark-submit; the options are those of ``kiel-groups spark archive``.

    PYTHONPATH=/jobs/lake spark-submit --master spark://master:7077 --archives /jobs/lake.tar.gz#lake \
        --conf spark.executorEnv.PYTHONPATH=lake spark_archive.py page-views --brokers broker-1:9092 \
        --output hdfs:///archive

docs/spark-installing.rst shows how to make ``/jobs/lake`` and ``/jobs/lake.tar.gz``.
"""

import sys

from kiel_groups.cli.app import run

if not sys.argv[1:]:
    sys.exit("usage: spark_archive.py TOPIC... --output FOLDER; --help lists further options")
sys.exit(run(["spark", "archive", *sys.argv[1:]]))
