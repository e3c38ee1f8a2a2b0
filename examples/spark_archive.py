"""
Run the archive job by spark-submit; the options are those of ``kiel-groups spark archive``.

    spark-submit --master yarn --py-files kiel_groups.zip spark_archive.py page-views --output hdfs:///archive
"""

import sys

from kiel_groups.cli.app import run

if not sys.argv[1:]:
    sys.exit("usage: spark_archive.py TOPIC... --output FOLDER; --help lists further options")
sys.exit(run(["spark", "archive", *sys.argv[1:]]))
