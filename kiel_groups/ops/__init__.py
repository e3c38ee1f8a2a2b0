"""
Read a group from its znodes alone, check it, and render it as tables or JSON.

``service`` loads the znodes; the commands and the demo render with it.
It is pure: it reads no clock and no server.
"""
