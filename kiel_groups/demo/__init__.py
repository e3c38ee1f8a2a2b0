"""The demo: a group shares a topic of a real cluster, loses a member to kill −9, and proves that it lost no record."""
