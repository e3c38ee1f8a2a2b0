"""
Serve REST interfaces over HTTP: routes, access by token, and bounds for bodies, connections and times.

Workers and the service use it. It knows neither groups nor connectors: a route is a pattern and, for each method, a
coroutine function from a call to an answer.
"""
