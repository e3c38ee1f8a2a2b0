"""
Compute the view of a group, check it, and render it as tables or JSON.

The command line and the demo use this package. A view has the same form whichever servers coordinate the group. The
functions compute views from the data that ``ops`` has read, and send no requests to servers.
"""
