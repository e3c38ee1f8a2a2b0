"""
Support programs written for kiel: the attributes that they read, and the four forms of a start that they pass.

Only ``grouped``, ``single`` and ``producer`` use this package.
The package adds names, not behaviour.
"""
