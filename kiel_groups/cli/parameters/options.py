"""Define options that several commands share, and find option values in the environment and the file of --config."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from functools import wraps
from itertools import takewhile, zip_longest
from pathlib import Path
from typing import Any, Final, NoReturn, TypeVar

import click

from kiel_groups.cli.parameters.cluster_address import complete_groups, complete_topics
from kiel_groups.errors import ConfigError
from kiel_groups.ops.actions.cluster_address import BROKERS, ZOOKEEPER, ClusterAddress
from kiel_groups.toml_files import check_keys, read_toml

FC = TypeVar("FC", bound=Callable[..., Any] | click.Command)


#: How long a command waits for ZooKeeper's first answer, or for an answer of a broker, in seconds. A user is waiting.
SERVER_WAIT_S: Final = 5.0

#: Settings of all commands: ``KIEL_GROUPS_<NAME>`` in the environment, a key at the top of the file.
SHARED: Final = ("brokers", "zookeeper", "security", "coordination")


def _name_security(context: click.Context, parameter: click.Parameter, path: Path | None) -> None:
    """
    Check the file of ``--security``, and name it in the environment, where all parts and child processes find it.
    """
    from kiel_groups.broker_security import BrokerSecurity
    from kiel_groups.config import SECURITY_VARIABLE
    from kiel_groups.security_file import read_security
    from kiel_groups.zookeeper.security import ZooKeeperSecurity

    if path is None or context.resilient_parsing:
        return
    try:
        for kind in (ZooKeeperSecurity, BrokerSecurity):
            read_security(path, kind, lambda text: context.obj.say("warning", text))
    except ConfigError as error:
        raise click.BadParameter(str(error), context, parameter, param_hint="'--security'") from error
    os.environ[SECURITY_VARIABLE] = str(path.absolute())


def security_option(command: FC) -> FC:
    """Add ``--security`` to a command that does not have it yet."""
    given = command.params if isinstance(command, click.Command) else getattr(command, "__click_params__", ())
    if any("--security" in each.opts for each in given):
        return command
    return click.option(
        "--security",
        type=click.Path(dir_okay=False, path_type=Path),
        expose_value=False,
        callback=_name_security,
        envvar="KIEL_GROUPS_SECURITY",
        show_envvar=True,
        metavar="FILE",
        help="A TOML file with users, passwords and certificates for ZooKeeper and brokers (docs/security.rst).",
    )(command)


def _brokers_option(*, required: bool) -> Callable[[FC], FC]:
    brokers: Callable[[FC], FC] = click.option(
        "--brokers",
        required=required,
        envvar="KIEL_GROUPS_BROKERS",
        show_envvar=True,
        metavar="HOST:PORT",
        help="One or more brokers, separated by commas.",
    )
    return lambda command: brokers(security_option(command))


brokers_option = _brokers_option(required=True)

#: For commands that need brokers only if brokers coordinate the groups.
optional_brokers_option = _brokers_option(required=False)


def coordination_option(help_text: str, **settings: Any) -> Callable[[FC], FC]:
    """Return the option ``--coordination``. ``settings`` are further arguments of ``click.option``."""
    return click.option(
        "--coordination",
        type=click.Choice([ZOOKEEPER, BROKERS]),
        default=ZOOKEEPER,
        show_default=True,
        envvar="KIEL_GROUPS_COORDINATION",
        show_envvar=True,
        help=help_text,
        **settings,
    )


def checked_zookeeper(context: click.Context, parameter: click.Parameter, hosts: str | None) -> str | None:
    """Return the address of a ZooKeeper, or raise BadParameter for a wrong one before the command starts."""
    from kiel_groups.config import ZooKeeperConfig

    try:
        if hosts is not None:
            ZooKeeperConfig.parse(hosts)
    except ConfigError as error:
        text = str(error).removeprefix("zk_hosts: ")
        raise click.BadParameter(text, context, parameter, param_hint=f"'{parameter.opts[0]}'") from None
    return hosts


def _zookeeper_option(*, required: bool) -> Callable[[FC], FC]:
    servers: Callable[[FC], FC] = click.option(
        "--zookeeper",
        required=required,
        callback=checked_zookeeper,
        envvar="KIEL_GROUPS_ZOOKEEPER",
        show_envvar=True,
        metavar="HOST:PORT",
        help="ZooKeeper's servers, separated by commas. A chroot follows the last one: z:2181/x.",
    )
    return lambda command: servers(security_option(command))


zookeeper_option = _zookeeper_option(required=True)

#: For commands that also work without ZooKeeper.
optional_zookeeper_option = _zookeeper_option(required=False)

json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON, for programs.")

#: For commands that print one object after the other.
json_lines_option = click.option("--json", "as_json", is_flag=True, help="Print JSON, one object per line.")

verbose_option = click.option(
    "-v", "--verbose", is_flag=True, help="Also print informational messages, on standard error."
)


def _set_log_format(context: click.Context, parameter: click.Parameter, value: str) -> None:
    if value == "json" and not context.resilient_parsing:
        context.obj.as_json = True


log_format_option = click.option(
    "--log-format",
    type=click.Choice(["text", "json"]),
    default="text",
    show_default=True,
    expose_value=False,
    callback=_set_log_format,
    help="How to print messages on standard error: as lines, or as a JSON document each.",
)


def port_option(
    name: str, help_text: str, default: int | None = 0, *, show_default: bool = False
) -> Callable[[FC], FC]:
    """Return an option for the number of a port. Its help shows the default, unless that is 0 or None."""
    return click.option(
        name, type=click.IntRange(0, 65535), default=default, show_default=bool(default), metavar="PORT", help=help_text
    )


metrics_port_option = port_option(
    "--metrics-port", "Serve the metrics of this process to Prometheus, at http://127.0.0.1:PORT/metrics.", None
)


def session_timeout_option(help_text: str) -> Callable[[FC], FC]:
    """Return the option ``--session-timeout-ms`` of a process that keeps a session with ZooKeeper."""
    return click.option(
        "--session-timeout-ms", type=int, default=10_000, show_default=True, metavar="MS", help=help_text
    )


quiet_option = click.option("-q", "--quiet", is_flag=True, help="Report errors only, without a summary or progress.")

group_argument = click.argument("group", shell_complete=complete_groups)

topic_argument = click.argument("topic", shell_complete=complete_topics)

key_separator_option = click.option(
    "--key-separator", metavar="TEXT", help=r"Text between the key and the value of a line; \t is a tab."
)


def separator_bytes(given: str | None) -> bytes | None:
    r"""
    Return the separator as bytes, with ``\t`` replaced by a tab, or None for None.

    Raises:
        ConfigError: The separator is empty.
    """
    if given == "":
        raise ConfigError("--key-separator: nothing given; expected at least one character")
    return None if given is None else given.replace("\\t", "\t").encode()


#: The longest time that an option may name, in seconds: a year. Python cannot wait for any number of seconds.
_LONGEST_S = 365 * 24 * 3600


class OptionalNumber(click.ParamType[float]):
    """
    The type of a number that the user of an option may leave out.

    If GROUP follows such an option, click takes GROUP for the number. Then the error says that GROUP goes before.

    Args:
        what: The counted things, in the plural, such as ``seconds``.
        least: The least number.
        most: The largest number.
        whole: Whether the number must be an integer.
        is_optional: Whether the user may leave out the number.
    """

    def __init__(
        self, what: str, *, least: float, most: float = math.inf, whole: bool = False, is_optional: bool = True
    ) -> None:
        self.name = what
        self._is_optional = is_optional
        self._least, self._most = least, most
        self._number: click.ParamType[float] = click.INT if whole else click.FLOAT

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return the value as a number. Raise BadParameter if it is not a number, or is too small or too large."""
        try:
            number = self._number.convert(value, param, ctx)
        except click.BadParameter:
            self.refuse(value, param, ctx)
        if number > self._most:
            self.fail(f"{value!r} is more than {self._most:,} {self.name}.", param, ctx)
        if not number >= self._least:  # This is also true for NaN.
            self.refuse(value, param, ctx)
        return number

    def refuse(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> NoReturn:
        """Raise BadParameter for a value that ``convert`` does not accept."""
        hint = "; GROUP goes before this option" if self._is_optional and not _is_number(value) else ""
        self.fail(f"{value!r} is not a number of {self.name} ≥ {self._least:g}{hint}.", param, ctx)


class Seconds(OptionalNumber):
    """The type of a number of seconds, such as ``60`` or ``60s``; see ``OptionalNumber``."""

    def __init__(self, *, least: float, is_optional: bool = True) -> None:
        super().__init__("seconds", least=least, most=_LONGEST_S, is_optional=is_optional)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return the number of seconds. Raise BadParameter as ``OptionalNumber`` does."""
        return super().convert(value.removesuffix("s") if isinstance(value, str) else value, param, ctx)


def optional_number(
    name: str, parameter: str, number: OptionalNumber, omitted: float, help_text: str
) -> Callable[[FC], FC]:
    """
    Return an option whose number the user may leave out, as in ``--watch``. Then the number is ``omitted``.

    The command must be a ``NumbersCommand``.
    """
    what = "N" if number.name == "plans" else number.name.upper()
    return click.option(
        name, parameter, type=number, is_flag=False, flag_value=omitted, metavar=f"[{what}]", help=help_text
    )


def seconds_option(name: str, help_text: str, default: float | None = None) -> Callable[[FC], FC]:
    """Return an option for a number of seconds. The command gets ``--timeout``, for example, as ``timeout_s``."""
    return click.option(
        name,
        f"{name.removeprefix('--')}_s",
        type=Seconds(least=0, is_optional=False),
        default=default,
        show_default=default is not None,
        metavar="SECONDS",
        help=help_text,
    )


class NumbersCommand(click.Command):
    """
    A command with options of type ``OptionalNumber``, whose error for a negative number names the number.

    Click's own error would be about an unknown option, because click takes a word with a leading hyphen for one, even
    the value of ``--check=-1``.
    """

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the words of a command line. Raise BadParameter for an optional number that begins with a hyphen."""
        if not ctx.resilient_parsing:  # A completion shows no errors.
            for option in self.params:
                if isinstance(option.type, OptionalNumber) and (value := _hyphenated(option.opts, args)):
                    option.type.refuse(value, option, ctx)
        return super().parse_args(ctx, args)


def _hyphenated(names: Sequence[str], words: Sequence[str]) -> str:
    """
    Return the value of an option if the value begins with a hyphen, or "" otherwise.

    The value is joined to the option by ``=``, or is the next word if that is a number.

    Args:
        names: The names of the option.
        words: The words of the command line.
    """
    before_arguments = takewhile(lambda pair: pair[0] != "--", zip_longest(words, words[1:], fillvalue=""))
    for word, following in before_arguments:
        name, is_joined, joined = word.partition("=")
        value = joined if is_joined else following
        if name in names and value.startswith("-") and (is_joined or _is_number(value)):
            return value
    return ""


def _is_number(value: object) -> bool:
    try:
        float(str(value))
    except ValueError:
        return False
    return True


# The sources of options: the command line, then the environment, then a file.
#
# The file is TOML. ``brokers`` and ``zookeeper`` are keys at its top, and apply to every command; a table for a
# command, such as ``[consume]`` or ``[topics.create]``, has its other options, named as on the command line without the
# leading dashes. Environment variables have names such as ``KIEL_GROUPS_BROKERS`` and ``KIEL_GROUPS_CONSUME_TIMEOUT``.


_PREFIX = "KIEL_GROUPS"
#: The key of the file's path in click's context, for errors.
_FILE_KEY = "kiel_groups.file"
#: How similar a variable must be to one of ours to count as misspelt: other programs may use our prefix, too.
_SIMILARITY = 0.85


def default_file() -> Path | None:
    """Return the file that is read without ``--config``, or None if it does not exist or is not accessible."""
    # Where a user has neither HOME nor a passwd entry, as in containers with a random user id, "~" stays as it is.
    folder = Path(os.environ.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config"))
    path = folder / "kiel-groups" / "config.toml"
    # Unlike Path.is_file, this does not raise if HOME is another user's folder.
    return path if path.is_absolute() and os.path.isfile(path) else None


def _load(context: click.Context, parameter: click.Parameter, given: Path | None) -> None:
    """
    Make the values of the file the defaults of the options, and check the names of environment variables.

    Raises:
        ConfigError: The file cannot be read or has a wrong key, or a variable is misspelt. During completion, these
            errors are ignored.
    """
    if not context.resilient_parsing:
        _check_environment(context)
    path = given or default_file()
    if path is None:
        return
    assert isinstance(context.command, click.Group)
    try:
        context.default_map = _defaults(context, context.command, read_toml(path, f"--config: {path}"), str(path), {})
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
    """Return the variable or the file that sets a parameter. Return None for the command line and for a default."""
    source = context.get_parameter_source(parameter.name or "")
    if source is click.core.ParameterSource.DEFAULT_MAP:
        return str(context.meta.get(_FILE_KEY))
    if source is click.core.ParameterSource.ENVIRONMENT:
        return next(name for name in _variables_of(parameter) if os.environ.get(name))
    return None


def name_variables(command: click.Command, name: str, prefix: str = _PREFIX) -> None:
    """
    Set the environment variable of every option that has no variable yet.

    The variable has the names of the command and of the option, such as ``KIEL_GROUPS_LAG_CHECK``.
    """
    inner = f"{prefix}_{_upper(name)}"
    if isinstance(command, click.Group):
        for further, subcommand in command.commands.items():
            name_variables(subcommand, further, inner)
    for option in _options(command).values():
        names = [f"{inner}_{_upper(name)}" for name in _long_names(option)]
        option.envvar = option.envvar or (names if len(names) > 1 else names[0])


def _defaults(
    context: click.Context, group: click.Group, table: Mapping[str, Any], place: str, shared: Mapping[str, Any]
) -> dict[str, Any]:
    """
    Return click's defaults for all commands of a group, from one table of the file.

    Args:
        context: The context of the program.
        group: The command group.
        table: The table of the file for this group.
        place: The name of the table in errors.
        shared: The values of the settings that all commands share; empty at the top of the file.

    Raises:
        ConfigError: The table has an unknown key, or a value of a wrong kind.
    """
    commands = dict(_commands(context, group))
    at_top = context.parent is None and not shared
    shared = {key: _value(table[key], f"{place}: {key}") for key in SHARED if key in table} if at_top else shared
    check_keys(table, [*commands, *(SHARED if at_top else ())], place)
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
    check_keys(table, options, place)
    own = {key: _value(value, f"{place} {key}", options[key].multiple) for key, value in table.items()}
    return {str(options[key].name): value for key, value in {**shared, **own}.items() if key in options}


def _commands(context: click.Context, group: click.Group) -> Iterator[tuple[str, click.Command]]:
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        if command is not None:
            yield name, command


def _options(command: click.Command) -> dict[str, click.Option]:
    """Return the options of a command by their long names, without leading dashes."""
    options = [parameter for parameter in command.params if isinstance(parameter, click.Option)]
    return {name: option for option in options for name in _long_names(option)}


def _long_names(option: click.Option) -> list[str]:
    return [name.removeprefix("--") for name in option.opts if name.startswith("--")] or option.opts


def _variables_of(option: click.Parameter) -> list[str]:
    return [option.envvar] if isinstance(option.envvar, str) else list(option.envvar or ())


def _value(value: Any, place: str, multiple: bool = False) -> Any:
    """Return a value of the file. Join a list by commas, unless ``multiple`` is set. Raise ConfigError for a table."""
    if isinstance(value, Mapping):
        raise ConfigError(f"{place}: a table given; expected a value")
    if isinstance(value, list):
        return value if multiple else ",".join(map(str, value))
    return value


#: The prefixes of variables from Kubernetes. It sets them in all containers if a service has the name kiel-groups.
_OF_KUBERNETES = (f"{_PREFIX}_SERVICE_", f"{_PREFIX}_PORT")


def _check_environment(context: click.Context) -> None:
    """Raise ConfigError for a variable that is probably misspelt. Ignore other unknown variables with our prefix."""
    assert isinstance(context.command, click.Group)
    ours = {name for name in os.environ if name.startswith(f"{_PREFIX}_")}
    if not ours:
        return
    known = {f"{_PREFIX}_CONFIG", *_variables(context, context.command)}
    for name in sorted(ours - known):
        if name.startswith(_OF_KUBERNETES):
            continue
        if near := get_close_matches(name, known, 1, _SIMILARITY):
            raise ConfigError(f"{name}: there is no such variable; did you mean {near[0]}?")


def _variables(context: click.Context, group: click.Group) -> Iterator[str]:
    for _, command in _commands(context, group):
        if isinstance(command, click.Group):
            yield from _variables(context, command)
        yield from (name for option in _options(command).values() for name in _variables_of(option))


def _upper(name: str) -> str:
    return name.replace("-", "_").upper()


def cluster_options(command: Callable[..., int]) -> Callable[..., int]:
    """
    Add three options to a command: ``--coordination``, ``--zookeeper`` and ``--brokers``.

    The command's function gets a ``ClusterAddress`` as ``cluster``. The address of what coordinates the groups is
    required, from the command line or the environment. The command line must not have the other address.
    """

    @address_options
    @click.pass_context
    @wraps(command)
    def with_cluster(
        context: click.Context, /, *, coordination: str, zookeeper: str | None, brokers: str | None, **options: Any
    ) -> int:
        cluster = given_address(context, coordination, zookeeper, brokers)
        result: int = context.invoke(command, cluster=cluster, **options)
        return result

    return with_cluster


def address_options(command: FC) -> FC:
    """Add ``--coordination``, ``--zookeeper`` and ``--brokers`` to a command, which calls ``given_address``."""
    command = optional_zookeeper_option(optional_brokers_option(command))
    help_text = "What coordinates the groups, and is asked: ZooKeeper, or the brokers (Kafka 0.9 or later)."
    return coordination_option(help_text)(command)


def given_address(
    context: click.Context, coordination: str, zookeeper: str | None, brokers: str | None
) -> ClusterAddress:
    """
    Return the address of a cluster from the values of ``address_options``.

    Raises:
        UsageError: The address for this coordination is missing, or the command line has the other one.
    """
    hosts = _brokers(context, brokers) if coordination == BROKERS else _zookeeper(context, zookeeper)
    return ClusterAddress(coordination, hosts, SERVER_WAIT_S)


def in_zookeeper_only(why: str) -> Callable[[FC], FC]:
    """
    Return a decorator for a command that works only with groups in ZooKeeper. The decorator adds the option
    ``--zookeeper``.

    The command refuses ``--coordination brokers``, and ``--brokers`` on the command line, with a UsageError.

    Args:
        why: Why the command does not work with groups of brokers, as the end of a sentence.
    """

    def refuse(context: click.Context, parameter: click.Parameter, given: str | None) -> None:
        source = source_of(context, parameter)
        is_meant = given == BROKERS if parameter.name == "coordination" else given is not None and source is None
        if is_meant and not context.resilient_parsing:
            aside = f" ({BROKERS!r} is set in {source}; '--coordination zookeeper' overrides it)" if source else ""
            raise click.UsageError(
                f"'{context.command_path.partition(' ')[2]}' is for groups that ZooKeeper coordinates: {why}{aside}.",
                context,
            )

    def add(command: FC) -> FC:
        # Without this option, the error for '--coordination brokers --brokers' would be that there is no such option.
        command = click.option("--brokers", hidden=True, expose_value=False, callback=refuse)(zookeeper_option(command))
        help_text = f"Only '{ZOOKEEPER}' works here: {why}."
        return coordination_option(help_text, is_eager=True, expose_value=False, callback=refuse)(command)

    return add


def refuse_given(context: click.Context, names: Sequence[str], why: str) -> None:
    """
    Raise UsageError if the command line has one of these options. ``why`` is the end of its message.
    """
    for parameter in context.command.params:
        given = context.get_parameter_source(parameter.name or "")
        if parameter.name in names and given is click.core.ParameterSource.COMMANDLINE:
            raise click.UsageError(f"'{max(parameter.opts, key=len)}' {why}.", context)


def refuse_zookeeper(context: click.Context) -> None:
    """Raise UsageError if the command line has ``--zookeeper``. The caller knows that brokers coordinate the groups."""
    source = source_of(context, _parameter(context, "coordination"))
    aside = f", which is set in {source}" if source else ""
    refuse_given(context, ("zookeeper",), f"does not go with '--coordination brokers'{aside}: no ZooKeeper is asked")


def _brokers(context: click.Context, brokers: str | None) -> str:
    refuse_zookeeper(context)
    if brokers is None:
        raise click.MissingParameter("Brokers coordinate the groups.", context, _parameter(context, "brokers"))
    return brokers


def _zookeeper(context: click.Context, zookeeper: str | None) -> str:
    why = "needs '--coordination brokers'; without it, the groups are those in ZooKeeper, which '--zookeeper' names"
    refuse_given(context, ("brokers",), why)
    if zookeeper is None:
        why = "If brokers coordinate the groups, give '--coordination brokers' and '--brokers'."
        raise click.MissingParameter(why, context, _parameter(context, "zookeeper"))
    return zookeeper


def _parameter(context: click.Context, name: str) -> click.Parameter:
    return next(each for each in context.command.params if each.name == name)


def milliseconds_option(name: str, default: int, help_text: str) -> Callable[[FC], FC]:
    """Return an option for a number of milliseconds."""
    return click.option(
        name, type=click.IntRange(min=0), default=default, show_default=True, metavar="MS", help=help_text
    )


def debounce_options(command: Callable[..., int]) -> Callable[..., int]:
    """
    Add the options of the debounce to a command. The debounce is the time for which a leader waits before it plans.

    The command's function gets a ``DebounceConfig`` as ``debounce``. The command raises ConfigError if
    ``--debounce-ms`` is above ``--debounce-bound-ms``.
    """

    @milliseconds_option("--debounce-ms", 100, "Make a plan when nothing has changed for this long.")
    @milliseconds_option("--debounce-bound-ms", 1_000, "Make a plan at the latest this long after the first change.")
    @milliseconds_option("--initial-delay-ms", 300, "How long a new leader waits for members to join before it plans.")
    @click.pass_context
    @wraps(command)
    def with_debounce(
        context: click.Context,
        /,
        *,
        debounce_ms: int,
        debounce_bound_ms: int,
        initial_delay_ms: int,
        **options: Any,
    ) -> int:
        from kiel_groups.config import DebounceConfig

        if debounce_ms > debounce_bound_ms:
            raise ConfigError(
                f"--debounce-ms: {debounce_ms} given; expected at most --debounce-bound-ms, which is"
                f" {debounce_bound_ms}"
            )
        debounce = DebounceConfig(quiet_ms=debounce_ms, bound_ms=debounce_bound_ms, initial_delay_ms=initial_delay_ms)
        result: int = context.invoke(command, debounce=debounce, **options)
        return result

    return with_debounce
