"""
Run whole pipelines that are built on the data source; each job is a function of a Spark session and settings.

The command ``kiel-groups spark`` and applications call the jobs.
A job writes only into its own folders, and commits offsets of its group; the next run continues a stopped job.
"""
