"""
View a group from its znodes, check it, and render it as tables or JSON.

``service`` loads the znodes; the commands and the demo use the views and the renderings.
This package is pure: it reads neither a clock nor a server.
"""
