"""The structure of the package: its layers, the imports that each may have, and the size limits of its parts."""
