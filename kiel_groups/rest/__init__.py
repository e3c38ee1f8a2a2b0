"""
Serve REST interfaces over HTTP: routes, access by token, and limits for bodies, connections and times.

Workers and the service use this package. It does not depend on groups or connectors. A route is a pattern of paths
and, for each method, a coroutine function that takes a call and returns an answer.
"""
