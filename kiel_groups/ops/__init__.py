"""
View a group from its znodes, check it, and render it as tables or JSON.

``service`` builds the views; the command line and the demo print them.
This package is pure: it reads neither a clock nor a server.
"""
