"""The facts of one simulated run, which judge nothing."""
