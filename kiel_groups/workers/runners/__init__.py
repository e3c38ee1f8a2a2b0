"""
Run one connector or one task: call its methods in their order, deliver its records, and commit delivered records.

The package ``execution`` creates a runner for each start of a piece of work, under a claim. A runner ends on request or
with the first error; it does not start again. It neither claims nor releases anything.
"""
