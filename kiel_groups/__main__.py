"""Run the command line: ``python -m kiel_groups``."""

from kiel_groups.cli import main

if __name__ == "__main__":
    main()
