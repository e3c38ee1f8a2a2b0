"""The structure of the package: its layers, what each may import, and how large its parts may grow."""
