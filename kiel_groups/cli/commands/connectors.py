"""``kiel-groups connectors list|create|config|status|pause|resume|restart|delete``, and ``connector-plugins``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from difflib import get_close_matches
from shlex import quote
from typing import IO, Any
from urllib.parse import quote as quote_path
from urllib.parse import urlencode

import click

from kiel_groups.cli.parameters.options import json_option
from kiel_groups.cli.parameters.worker_address import WorkerAddress, worker_options
from kiel_groups.cli.terminal.messages import DONE, EPILOG, FAILED, Lines
from kiel_groups.errors import ConfigError, NoWorkerError, ProtocolError, TokenError, UnknownConnectorError
from kiel_groups.wording import counted

#: How long a command waits for an answer, in seconds. A worker gives up earlier.
_ANSWER_WAIT_S = 65.0

_force_option = click.option("--force", is_flag=True, help="Store settings although their names look misspelt.")

_name_argument = click.argument("name", metavar="CONNECTOR")


def _file_argument(file: IO[bytes]) -> dict[str, Any]:
    """Return the JSON object in a file. Raise ConfigError if the file cannot be read or has another content."""
    import json

    name = "standard input" if file.name == "<stdin>" else file.name
    try:
        found = json.loads(file.read())
    except OSError as error:
        raise ConfigError(f"{name} cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise ConfigError(
            f"{name} is not JSON: {error}; expected an object with the settings of a connector (files of Kafka"
            " Connect's standalone mode, with key=value lines, are not read)"
        ) from error
    if not isinstance(found, dict):
        raise ConfigError(f"{name} has no JSON object; expected the settings of a connector by name")
    return found


@click.group(epilog=EPILOG)
def connectors() -> None:
    """List, create, change, pause, restart and delete the connectors of a group of workers."""


@connectors.command("list", epilog=EPILOG)
@worker_options
@json_option
def list_connectors(*, worker: WorkerAddress, as_json: bool) -> int:
    """List all connectors, with the states of their tasks."""
    from kiel_groups.cli.terminal.rendering import plain_table, show_result

    found = dict(sorted(_ask(worker, "GET", "/connectors?expand=status&expand=info", of="lists no connectors").items()))
    rows = []
    for name, each in found.items():
        status, config = each["status"], each["info"]["config"]
        tasks = _summary(
            "RUNNING without progress" if task.get("problem") else task["state"] for task in status["tasks"]
        )
        rows.append((name, status["type"], status["connector"]["state"], tasks, config.get("connector.class", "")))
    table = plain_table(("connector", "type", "state", "tasks", "class"), rows)
    none = "there is no connector; 'kiel-groups connectors create' creates one"
    show_result(found, table if found else none, as_json=as_json)
    return DONE


@connectors.command(epilog=EPILOG)
@click.argument("file", type=click.File("rb"), metavar="FILE")
@click.option("--name", metavar="NAME", help="The name of the connector, instead of the one in FILE.")
@_force_option
@worker_options
@json_option
@click.pass_obj
def create(
    lines: Lines, /, *, file: IO[bytes], name: str | None, force: bool, worker: WorkerAddress, as_json: bool
) -> int:
    """
    Create a connector from a file with its settings.

    FILE is a JSON object, or - for standard input:

    \b
      {"name": "logs", "connector.class": "FileStreamSource",
       "file": "/var/log/syslog", "topic": "logs"}

    Kafka Connect's form is accepted, too: {"name": "logs", "config": {...}}.
    """
    from kiel_groups.cli.terminal.rendering import show_json

    given = _file_argument(file)
    nested = given.get("config")
    config = nested if isinstance(nested, dict) else given
    name = name or given.get("name") or config.get("name")
    if not isinstance(name, str):
        raise ConfigError("the connector has no name; give one by 'name' in the file, or by --name")
    config = {**config, "name": name}
    warnings = _checked(worker, config, config, force=force)
    created = _ask(worker, "POST", "/connectors", {"name": name, "config": config})
    _warn(lines, warnings)
    if as_json:
        show_json(created)
    else:
        hint = f"'kiel-groups connectors status {quote(name)}' shows what it does"
        lines.say("info", f"connector {name} created; {hint}")
    return DONE


@connectors.command(epilog=EPILOG)
@_name_argument
@click.argument("changes", nargs=-1, metavar="[SETTING=VALUE...]")
@click.option(
    "--file", type=click.File("rb"), metavar="FILE", help="Replace all settings by those in JSON; - is standard input."
)
@click.option(
    "--remove", multiple=True, metavar="SETTING", help="Remove a setting, so that its default counts; may be repeated."
)
@_force_option
@worker_options
@json_option
@click.pass_context
def config(
    context: click.Context,
    /,
    *,
    name: str,
    changes: Sequence[str],
    file: IO[bytes] | None,
    remove: Sequence[str],
    force: bool,
    worker: WorkerAddress,
    as_json: bool,
) -> int:
    """
    Show, change or remove settings of a connector.

    Secrets are shown as [hidden]. Settings that are given as [hidden] stay as they are, so what --json prints can be
    edited and given to --file.
    """
    from kiel_groups.cli.terminal.rendering import plain_table, show_result

    if (changes or remove) and file is not None:
        raise click.UsageError("give either settings with their values and --remove, or --file.", context)
    path = f"{_path(name)}/config"
    found = _ask(worker, "GET", path)
    if changes or remove or file is not None:
        given = _without(found, remove) | _changed(changes) if file is None else _file_argument(file)
        warnings = _checked(worker, given, given.keys() - found.keys(), force=force)
        # What others change meanwhile is kept, unless a whole file replaces it.
        patch = {**dict.fromkeys(remove), **_changed(changes)}
        changed = _ask(worker, "PATCH", path, patch) if file is None else _ask(worker, "PUT", path, given)
        before, found = found, changed["config"]
        lines = context.ensure_object(Lines)
        _warn(lines, warnings)
        difference = _difference(before, given, found)
        lines.say("info", f"connector {name} has {counted(found, 'setting')} now; {difference}")
        if not as_json:
            return DONE
    show_result(found, plain_table(("setting", "value"), sorted(found.items())), as_json=as_json)
    return DONE


@connectors.command(epilog=EPILOG)
@_name_argument
@click.option("--check", is_flag=True, help="Exit with 1 if there is a problem, for monitoring.")
@click.option("--trace", is_flag=True, help="Show the whole trace of each failure, too.")
@worker_options
@json_option
def status(*, name: str, check: bool, trace: bool, worker: WorkerAddress, as_json: bool) -> int:
    """
    Show the problems, states and workers of a connector and its tasks.

    A problem is work that has failed, has no worker, or waits, also in part, such as a sink whose topic does not exist.
    """
    from kiel_groups.cli.terminal.rendering import plain_table, show_result

    found = _ask(worker, "GET", f"{_path(name)}/status")
    works = {found["name"]: found["connector"]} | {f"{found['name']}-{task['id']}": task for task in found["tasks"]}
    problems = [f"problem: {work} {problem}" for work, each in works.items() if (problem := _problem(each))]
    traces = [f"{work}:\n{each['trace'].strip()}" for work, each in works.items() if trace and each.get("trace")]
    rows = [(work, each["state"], each["worker_id"]) for work, each in works.items()]
    table = plain_table(("connector or task", "state", "worker"), rows)
    # The table ends with an empty line.
    show_result(found, *problems, table, "\n\n".join(traces), as_json=as_json)
    return FAILED if check and problems else DONE


@connectors.command(epilog=EPILOG)
@_name_argument
@worker_options
@click.pass_obj
def pause(lines: Lines, /, *, name: str, worker: WorkerAddress) -> int:
    """
    Pause a connector and its tasks.

    The paused connector and tasks keep their workers. When resumed, they continue where they were.
    """
    _ask(worker, "PUT", f"{_path(name)}/pause", of=None)
    lines.say("info", f"connector {name} pauses")
    return DONE


@connectors.command(epilog=EPILOG)
@_name_argument
@worker_options
@click.pass_obj
def resume(lines: Lines, /, *, name: str, worker: WorkerAddress) -> int:
    """Resume a connector that is paused, and its tasks."""
    _ask(worker, "PUT", f"{_path(name)}/resume", of=None)
    lines.say("info", f"connector {name} resumes")
    return DONE


@connectors.command(epilog=EPILOG)
@_name_argument
@click.option("--task", type=click.IntRange(min=0), metavar="N", help="Restart this task only.")
@click.option("--with-tasks", is_flag=True, help="Restart the tasks, too.")
@click.option("--only-failed", is_flag=True, help="Restart only what has failed.")
@worker_options
@click.pass_context
def restart(
    context: click.Context,
    /,
    *,
    name: str,
    task: int | None,
    with_tasks: bool,
    only_failed: bool,
    worker: WorkerAddress,
) -> int:
    """Restart a connector, and with --with-tasks its tasks, too."""
    if task is not None and (with_tasks or only_failed):
        raise click.UsageError("'--task' does not go with '--with-tasks' and '--only-failed'.", context)
    if task is None:
        query = urlencode({"includeTasks": str(with_tasks).lower(), "onlyFailed": str(only_failed).lower()})
        _ask(worker, "POST", f"{_path(name)}/restart?{query}", of=None)
    else:
        _ask(worker, "POST", f"{_path(name)}/tasks/{task}/restart", of=None)
    what = f"connector {name}" if task is None else f"task {name}-{task}"
    context.ensure_object(Lines).say("info", f"{what} restarts{' where it has failed' if only_failed else ''}")
    return DONE


@connectors.command(epilog=EPILOG)
@_name_argument
@worker_options
@click.pass_obj
def delete(lines: Lines, /, *, name: str, worker: WorkerAddress) -> int:
    """Delete a connector. Its source offsets stay: another one of this name continues at them."""
    _ask(worker, "DELETE", _path(name), of=None)
    lines.say("info", f"connector {name} deleted")
    return DONE


@click.command("connector-plugins", epilog=EPILOG)
@worker_options
@json_option
def connector_plugins(*, worker: WorkerAddress, as_json: bool) -> int:
    """
    List the connectors that are installed at a worker.

    The names are values for the setting connector.class; --json has the full names of the classes. If the workers
    permit it, connector.class takes 'module:Class', too: of the modules that 'workers run --plugin-classes' names or,
    by default, of any module if the REST interface is on a loopback address.
    """
    from kiel_groups.cli.terminal.rendering import plain_table, show_result

    found = _ask(worker, "GET", "/connector-plugins", of=None)
    names = _short_names([plugin["class"] for plugin in found])
    rows = [(names[plugin["class"]], plugin["type"], plugin["version"]) for plugin in found]
    none = f"no connectors are installed at {worker.url}; connector.class takes 'module:Class'"
    show_result(found, plain_table(("connector", "type", "version"), rows) if found else none, as_json=as_json)
    return DONE


def _short_names(classes: Sequence[str]) -> dict[str, str]:
    """
    Return the shortest name of each class that the setting ``connector.class`` accepts.

    The shortest name is the alias of the class, or the full name of the class if several classes have the same alias.
    """
    aliases = {name: name.rpartition(".")[2].removesuffix("Connector") for name in classes}
    shared = Counter(aliases.values())
    return {name: alias if shared[alias] == 1 else name for name, alias in aliases.items()}


def _problem(status: Mapping[str, Any]) -> str:
    """Return the problem of a connector or a task as a text of one line, or "" if there is no problem."""
    from kiel_groups.group.znodes.worker_contents import cause_of

    problem = status.get("problem", "")
    match status["state"]:
        case "FAILED":
            return f"has failed: {cause_of(status.get('trace', ''))}"
        case "UNASSIGNED":
            return f"does not run yet: {problem}" if problem else "does not run: it has no worker at the moment"
    return f"reports: {problem}" if problem else ""


def _path(name: str) -> str:
    from kiel_groups.workers.rest.client import connector_path

    return connector_path(name)


def _ask(
    worker: WorkerAddress,
    method: str,
    path: str,
    document: Mapping[str, Any] | None = None,
    *,
    of: str | None = "answers with no object",
) -> Any:
    """
    Send a request to a worker, and return its answer. The call blocks.

    Args:
        worker: The worker.
        method: The method of HTTP.
        path: The path, with the query.
        document: The object to send as JSON, or None to send nothing.
        of: The text for the error if the answer is not an object, or None if the answer may be anything.

    Raises:
        KielGroupsError: As for ``WorkerClient.call``.
        ProtocolError: The answer is not an object, so another program listens at this address.
    """
    import asyncio

    from kiel_groups.workers.rest.client import WorkerClient

    async def ask() -> Any:
        async with WorkerClient(*worker, timeout_s=_ANSWER_WAIT_S) as client:
            return await client.call(method, path, document)

    try:
        found = asyncio.run(ask())
    except TokenError as error:
        raise TokenError(_token_advice(worker)) from error
    except NoWorkerError as error:
        hint = "'kiel-groups workers run' starts a worker, and '--url' names another one"
        raise NoWorkerError(f"{error}; {hint}") from error
    if of is not None and not isinstance(found, dict):
        raise ProtocolError(f"{worker.url} is not the interface of a worker: it {of}")
    return found


def _token_advice(worker: WorkerAddress) -> str:
    if worker.token:
        return f"the worker at {worker.url} has another token than the file of '--token-file'"
    return (
        f"the worker at {worker.url} asks for a token; give the file with it by '--token-file', or by"
        " KIEL_GROUPS_TOKEN_FILE in the environment"
    )


def _checked(worker: WorkerAddress, config: Mapping[str, Any], new: Collection[str], *, force: bool) -> Sequence[str]:
    """
    Let a worker validate the settings of a connector, and return its warnings.

    If the worker refuses to validate them, return no warning: storing the settings raises the error.

    Args:
        worker: The worker.
        config: All settings of the connector.
        new: The names of the settings that are not stored yet.
        force: Whether to accept names that are probably misspelt.

    Raises:
        ConfigError: A new name is probably misspelt.
    """
    plugin = quote_path(str(config.get("connector.class", "")), safe="")
    try:
        doubts = _ask(worker, "PUT", f"/connector-plugins/{plugin}/config/validate", config)
    except (ConfigError, UnknownConnectorError):
        # Settings such as those of a class that cannot be imported: the worker says why when they are stored.
        return []
    warnings, names = doubts.get("warnings"), doubts.get("mistyped")
    mistyped = [
        f"{name}: there is no such setting; did you mean {near!r}?"
        for name, near in (names.items() if isinstance(names, dict) else ())
        if name in new
    ]
    if mistyped and not force:
        raise ConfigError(f"{' '.join(mistyped)} Nothing is stored; --force stores such a setting all the same")
    return list(map(str, warnings)) if isinstance(warnings, list) else []


def _without(config: Mapping[str, str], remove: Collection[str]) -> dict[str, str]:
    """Return the settings without those in ``remove``. Raise ConfigError for a name that is not a setting."""
    if missing := [name for name in remove if name not in config]:
        near = get_close_matches(missing[0], config, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise ConfigError(f"--remove: the connector has no setting {missing[0]!r}{hint}")
    return {name: text for name, text in config.items() if name not in remove}


def _warn(lines: Lines, warnings: Iterable[str]) -> None:
    """Print the warnings of a worker about settings that it has accepted."""
    for warning in warnings:
        lines.say("warning", warning)


def _difference(before: Mapping[str, str], given: Mapping[str, Any], after: Mapping[str, str]) -> str:
    """
    Return a text about the changes to a connector's settings, such as ``added: a, b; changed: c``.

    Args:
        before: The settings before the change, with secrets hidden.
        given: The settings from the user, with new secrets.
        after: The settings after the change, with secrets hidden.
    """
    from kiel_groups.secret_texts import HIDDEN

    both = before.keys() & after.keys()
    # A new secret is shown as the old one was.
    is_new_secret = {name for name in both & given.keys() if HIDDEN in after[name] and given[name] != before[name]}
    names = {
        "added": after.keys() - before.keys(),
        "changed": {name for name in both if after[name] != before[name]} | is_new_secret,
        "removed": before.keys() - after.keys(),
    }
    parts = [f"{what}: {', '.join(sorted(found))}" for what, found in names.items() if found]
    return "; ".join(parts) or "nothing has changed"


def _summary(states: Iterable[str]) -> str:
    """Return a text with the number of tasks in each state, such as ``2 running, 1 failed``."""
    return ", ".join(f"{count:,} {state.lower()}" for state, count in Counter(states).most_common()) or "none"


def _changed(changes: Sequence[str]) -> dict[str, str]:
    """Parse settings that the user gives as ``SETTING=VALUE``. Raise ConfigError for another form."""
    pairs = [change.partition("=") for change in changes]
    for setting, equals, value in pairs:
        if not (setting and equals):
            raise ConfigError(f"{setting + value!r} given; expected SETTING=VALUE, such as tasks.max=3")
    return {setting: value for setting, _, value in pairs}
