"""
The driver of a group's leader: it runs the election, reads the inputs of plans, publishes plans, monitors owners.

``coordination.member`` runs one driver for each session, idle unless that leads, and finds foreign members with it.
It performs what ``group.leader`` decides, and never creates or deletes an owner znode.
"""
