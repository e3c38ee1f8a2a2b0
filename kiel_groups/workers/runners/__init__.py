"""
Run one connector or one task: call its methods in their order, deliver its records, and commit what is delivered.

The package ``execution`` creates a runner for each start of a piece of work, under a claim. A runner ends when it is
asked to, or with the first error; it does not start again. It neither claims nor releases anything.
"""
