"""
View a group as one value, whichever servers coordinate it, check it, and render it as tables or JSON.

The command line and the demo use it.
The views are computed from what ``ops`` has read; they ask no server.
"""
