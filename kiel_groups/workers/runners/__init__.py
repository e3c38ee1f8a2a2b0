"""
Run one connector or task (the work): call its methods in their order, deliver its records, and commit their offsets.

The package ``execution`` claims the work, and creates a runner for each start of the work. A runner ends on request or
with the first error, and does not start again. ``execution`` also releases the claim.
"""
