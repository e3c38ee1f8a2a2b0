"""
The parts of the benchmarks of delivery: what is read, how it is written, which clients read it, and what that costs.

``benchmarks.consume`` and ``benchmarks.latency`` use them. They start programs of ``benchmarks.members``, one for each
run, and import no client but kiel-groups.
"""
