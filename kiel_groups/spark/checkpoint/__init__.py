"""
Describe what a query's checkpoint stores: offsets as JSON, and whether the last batch was completed.

The streams, the group members and the archive job use it.
Its JSON is on users' disks: fields may be added, and are never renamed.
"""
