"""
Offer what programs written for kiel read and pass: attributes of the clients, and four ways to name a start.

Only ``grouped``, ``single`` and ``producer`` use it.
It adds names, not behaviour.
"""
