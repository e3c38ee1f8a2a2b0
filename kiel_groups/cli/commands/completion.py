"""``kiel-groups completion``."""

from __future__ import annotations

import click

from kiel_groups.cli.terminal.exit_codes import DONE, EPILOG

__all__ = ["completion"]

_SHELLS = ("bash", "zsh", "fish")

#: What click's scripts lack, tried in zsh 5.9 and fish 3.6: what stands there, and what is to stand there.
_AMENDED = {
    # A start-up file that does not begin completion yet knows no compdef.
    "zsh": ("    compdef ", "    (( $+functions[compdef] )) || { autoload -Uz compinit && compinit }\n    compdef "),
    # Descriptions have commas, too.
    "fish": ('string split "," $completion', 'string split --max 1 "," $completion'),
}


@click.command(epilog=EPILOG)
@click.argument("shell", type=click.Choice(_SHELLS))
def completion(*, shell: str) -> int:
    """
    Print a script that has SHELL complete commands, options and topics.

    \b
    bash:  eval "$(kiel-groups completion bash)"           in ~/.bashrc
    zsh:   eval "$(kiel-groups completion zsh)"            in ~/.zshrc
    fish:  kiel-groups completion fish | source            in config.fish
    """
    from click.shell_completion import get_completion_class

    from kiel_groups.cli.app import COMPLETION_VARIABLE, NAME, app
    from kiel_groups.cli.terminal.rendering import show

    completing = get_completion_class(shell)
    assert completing is not None, "click knows all of them"
    # Not .source(): it runs bash to look at its version, and there may be none where the script is made.
    script = completing(app, {}, NAME, COMPLETION_VARIABLE)
    show(script.source_template.replace(*_AMENDED.get(shell, ("", ""))) % script.source_vars())
    return DONE
