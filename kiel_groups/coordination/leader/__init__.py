"""
The driver of a group's leader: it runs the election, reads the inputs of plans, publishes plans, monitors owners.

Each session of a member or an allocator process has a driver, which is idle unless the session leads.
The driver performs what ``group.leader`` decides, and never creates or deletes an owner znode.
"""
