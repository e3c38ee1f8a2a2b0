"""``kiel-groups completion``."""

from __future__ import annotations

import click

from kiel_groups.cli.terminal.messages import DONE, EPILOG

_SHELLS = ("bash", "zsh", "fish")

#: Corrections of click's scripts, tried in zsh 5.9 and fish 3.6: the text to replace, and its replacement.
_CORRECTIONS = {
    # compdef does not exist in a start-up file that has not called compinit yet.
    "zsh": ("    compdef ", "    (( $+functions[compdef] )) || { autoload -Uz compinit && compinit }\n    compdef "),
    # Descriptions contain commas, too.
    "fish": ('string split "," $completion', 'string split --max 1 "," $completion'),
}


@click.command(epilog=EPILOG)
@click.argument("shell", type=click.Choice(_SHELLS))
def completion(*, shell: str) -> int:
    """
    Print a script that makes SHELL complete commands, options and names.

    \b
    bash:  eval "$(kiel-groups completion bash)"           in ~/.bashrc
    zsh:   eval "$(kiel-groups completion zsh)"            in ~/.zshrc
    fish:  kiel-groups completion fish | source            in config.fish
    """
    from click.shell_completion import get_completion_class

    from kiel_groups.cli.app import COMPLETION_VARIABLE, NAME, app
    from kiel_groups.cli.terminal.rendering import show

    completion_class = get_completion_class(shell)
    assert completion_class is not None, "click knows all of them"
    # Not .source(): it runs bash to check its version, but bash may be missing on this computer.
    script = completion_class(app, {}, NAME, COMPLETION_VARIABLE)
    show(script.source_template.replace(*_CORRECTIONS.get(shell, ("", ""))) % script.source_vars())
    return DONE
