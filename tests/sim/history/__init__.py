"""The facts of one simulated run, recorded without checks."""
