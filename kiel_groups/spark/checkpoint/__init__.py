"""
Describe what a query's checkpoint holds: offsets as JSON, and whether the last batch was completed.

The streams, the members of groups and the archive job use it.
Its JSON is on disks of users: fields may be added, and are never renamed.
"""
