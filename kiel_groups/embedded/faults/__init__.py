"""
Inject faults between clients and servers: proxies that cut, delay or stall connections, or change brokers' answers.

Ensembles of ``embedded.servers`` put proxies between their servers; tests and the chaos runs use all of them.
It needs no privileges, and changes only those answers of brokers that the caller's function selects.
"""
