"""
Describe what a query's checkpoint stores: offsets as JSON, and whether the last batch was completed.

Batches, streams, their tasks and options, members and jobs use it, and the summary of ``kiel-groups spark archive``.
Its JSON is on users' disks: fields may be added, and are never renamed.
"""
