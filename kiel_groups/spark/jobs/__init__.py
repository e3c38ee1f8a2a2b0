"""
Run whole pipelines that are built on the data source; each job is a function of a Spark session and settings.

Applications and the command ``kiel-groups spark`` call the jobs.
A job writes only into its own folders, and commits only its group's offsets; the next run continues a stopped job.
"""
