"""
Show things to people: messages on standard error, tables, progress bars, watching, exit codes, orderly ends.

The commands use it.
Standard output carries results only; everything else goes to standard error.
"""
