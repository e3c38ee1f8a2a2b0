"""
Drive the leader of a group: the election, reading the inputs of plans, publishing them, and watching their owners.

Every session of a member or of an allocator process runs it, mostly idle.
It performs what ``group.leader`` decides, and never touches an owner znode.
"""
