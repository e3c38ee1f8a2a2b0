"""
The sources of options: the command line, then the environment, then a file.

The file is TOML. ``brokers`` and ``zookeeper`` are keys at its top, and apply to every command; a table for a command,
such as ``[consume]`` or ``[topics.create]``, has its other options, named as on the command line without the leading
dashes. Environment variables have names such as ``KIEL_GROUPS_BROKERS`` and ``KIEL_GROUPS_CONSUME_TIMEOUT``.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import click

from kiel_groups.cli.parameters.shared_options import SHARED
from kiel_groups.errors import ConfigError

__all__ = ["config_option", "default_file", "name_variables", "source_of"]

_PREFIX = "KIEL_GROUPS"
#: The key of the file's path in click's context, for errors.
_FILE_KEY = "kiel_groups.file"
#: How similar a variable must be to one of ours to count as misspelt: other programs may use our prefix, too.
_SIMILARITY = 0.85


def default_file() -> Path | None:
    """Return the file that is read if the caller names none, or None if there is none that this user may look up."""
    # Where a user has neither HOME nor a passwd entry, as in containers with a random user id, "~" stays as it is.
    folder = Path(os.environ.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config"))
    path = folder / "kiel-groups" / "config.toml"
    # Unlike Path.is_file, this does not raise if HOME is another user's folder.
    return path if path.is_absolute() and os.path.isfile(path) else None


def _load(context: click.Context, parameter: click.Parameter, given: Path | None) -> None:
    """Make the values of the file the defaults of the options."""
    if not context.resilient_parsing:
        _check_environment(context)
    path = given or default_file()
    if path is None:
        return
    assert isinstance(context.command, click.Group)
    try:
        context.default_map = _defaults(context, context.command, _read(path), str(path), {})
    except ConfigError:
        if not context.resilient_parsing:  # Completion has no place for errors.
            raise
    context.meta[_FILE_KEY] = str(path)


config_option = click.option(
    "--config",
    type=click.Path(dir_okay=False, path_type=Path),
    is_eager=True,
    expose_value=False,
    envvar=f"{_PREFIX}_CONFIG",
    show_envvar=True,
    callback=_load,
    metavar="FILE",
    help="A TOML file with defaults of options.  [default: ~/.config/kiel-groups/config.toml]",
)


def source_of(context: click.Context, parameter: click.Parameter) -> str | None:
    """Return the variable or the file that sets a parameter, or None for the command line or a built-in default."""
    source = context.get_parameter_source(parameter.name or "")
    if source is click.core.ParameterSource.DEFAULT_MAP:
        return str(context.meta.get(_FILE_KEY))
    if source is click.core.ParameterSource.ENVIRONMENT:
        return next(name for name in _variables_of(parameter) if os.environ.get(name))
    return None


def name_variables(command: click.Command, name: str, prefix: str = _PREFIX) -> None:
    """Give every option without an environment variable one that is named after the command and the option."""
    inner = f"{prefix}_{_upper(name)}"
    if isinstance(command, click.Group):
        for further, subcommand in command.commands.items():
            name_variables(subcommand, further, inner)
    for option in _options(command).values():
        names = [f"{inner}_{_upper(name)}" for name in _long_names(option)]
        option.envvar = option.envvar or (names if len(names) > 1 else names[0])


def _read(path: Path) -> dict[str, Any]:
    import tomllib

    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"--config: {path} cannot be read: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"--config: {path} is not TOML: {error}") from error


def _defaults(
    context: click.Context, group: click.Group, table: Mapping[str, Any], place: str, shared: Mapping[str, Any]
) -> dict[str, Any]:
    """Return click's defaults for all commands of a group, from one table of the file."""
    commands = dict(_commands(context, group))
    at_top = context.parent is None and not shared
    shared = {key: _value(table[key], f"{place}: {key}") for key in SHARED if key in table} if at_top else shared
    _check_keys(table, [*commands, *(SHARED if at_top else ())], place)
    return {
        name: _command_defaults(context, command, table.get(name, {}), f"{place}: [{name}]", shared)
        for name, command in commands.items()
    }


def _command_defaults(
    context: click.Context, command: click.Command, table: Any, place: str, shared: Mapping[str, Any]
) -> dict[str, Any]:
    if not isinstance(table, Mapping):
        raise ConfigError(f"{place}: {table!r} given; expected a table")
    if isinstance(command, click.Group):
        return _defaults(context, command, table, place, shared or {"": None})
    options = _options(command)
    _check_keys(table, options, place)
    own = {key: _value(value, f"{place} {key}", options[key].multiple) for key, value in table.items()}
    return {str(options[key].name): value for key, value in {**shared, **own}.items() if key in options}


def _commands(context: click.Context, group: click.Group) -> Iterator[tuple[str, click.Command]]:
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        if command is not None:
            yield name, command


def _options(command: click.Command) -> dict[str, click.Option]:
    """Return the options by their long names, without leading dashes."""
    options = [parameter for parameter in command.params if isinstance(parameter, click.Option)]
    return {name: option for option in options for name in _long_names(option)}


def _long_names(option: click.Option) -> list[str]:
    return [name.removeprefix("--") for name in option.opts if name.startswith("--")] or option.opts


def _variables_of(option: click.Parameter) -> list[str]:
    return [option.envvar] if isinstance(option.envvar, str) else list(option.envvar or ())


def _check_keys(table: Mapping[str, Any], known: Iterable[str], place: str) -> None:
    listed = list(known)
    for key in table:
        if key not in listed:
            near = get_close_matches(key.replace("_", "-"), listed, 1)
            raise ConfigError(
                f"{place}: there is no {key!r}; "
                + (f"did you mean {near[0]!r}?" if near else f"known: {', '.join(listed)}")
            )


def _value(value: Any, place: str, multiple: bool = False) -> Any:
    """Return a value of the file, a list joined by commas unless ``multiple``. Raise ConfigError for a table."""
    if isinstance(value, Mapping):
        raise ConfigError(f"{place}: a table given; expected a value")
    if isinstance(value, list):
        return value if multiple else ",".join(map(str, value))
    return value


def _check_environment(context: click.Context) -> None:
    """Raise ConfigError for a variable that is probably misspelt; ignore other variables with our prefix."""
    assert isinstance(context.command, click.Group)
    ours = {name for name in os.environ if name.startswith(f"{_PREFIX}_")}
    if not ours:
        return
    known = {f"{_PREFIX}_CONFIG", *_variables(context, context.command)}
    for name in sorted(ours - known):
        if near := get_close_matches(name, known, 1, _SIMILARITY):
            raise ConfigError(f"{name}: there is no such variable; did you mean {near[0]}?")


def _variables(context: click.Context, group: click.Group) -> Iterator[str]:
    for _, command in _commands(context, group):
        if isinstance(command, click.Group):
            yield from _variables(context, command)
        yield from (name for option in _options(command).values() for name in _variables_of(option))


def _upper(name: str) -> str:
    return name.replace("-", "_").upper()
