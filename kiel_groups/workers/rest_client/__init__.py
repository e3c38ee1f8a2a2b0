"""
Call the REST interfaces of workers, with bounds for time and size.

The command line calls a worker by it, and workers forward requests to each other by it.
This package knows nothing of a worker but its URL and its token.
"""
