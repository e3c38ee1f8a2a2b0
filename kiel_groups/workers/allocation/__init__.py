"""
Divide connectors and tasks among workers: each piece of work goes to one worker, and loads differ by at most one.

The leader of a worker group runs one of the allocators, which its workers choose by name.
Allocators are pure. They know neither what a connector does nor how much it costs.
"""
