"""The invariants of every simulated run: a class for each, which also contains the invariant's exceptions."""
