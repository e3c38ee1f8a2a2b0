"""Mutants of what hides the secrets of connectors: in answers, statuses, errors and logs."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

__all__ = ["MUTANTS"]

_TEXTS = "workers/plugins/secret_texts.py"
_MASKS = "workers/plugins/secret_masks.py"
_TYPES = "workers/plugins/config_types.py"
_CHECKS = "workers/plugins/connector_checks.py"
_RUNNERS = "workers/execution/plugin_runners.py"

_TEXTS_TEST = "tests/unit/workers/plugins/test_secret_texts.py"
_TEXTS_LAWS = "tests/property/test_secret_texts_laws.py"
_GROWTH_LAWS = "tests/property/test_growth_laws.py"
_MASKS_TEST = "tests/unit/workers/plugins/test_secret_masks.py"
_KEY_TEST = "tests/unit/workers/plugins/test_config_key.py"
_CHECKS_TEST = "tests/unit/workers/plugins/test_connector_checks.py"
_KEPT_WORK_TEST = "tests/sim/test_kept_work.py"

MUTANTS = (
    # URLs
    Mutant(
        "a password that is not encoded is shown from its first @ on",
        _TEXTS,
        'credentials, at, rest = url.rpartition("@")',
        'credentials, at, rest = url.partition("@")',
        _TEXTS_LAWS,
    ),
    Mutant(
        "a password of digits that has a slash counts as a port",
        _TEXTS,
        '_USER_AND_PASSWORD = re.compile(r"[^\\s/?#:]*:")',
        '_USER_AND_PASSWORD = re.compile(r"[^\\s/?#:]*:(?!\\d+/)")',
        _TEXTS_TEST,
    ),
    Mutant(
        "a password with a blank is shown",
        _TEXTS,
        "\\w[\\w+.:-]*://)[^\\n])+",
        "\\w[\\w+.:-]*://)\\S)+",
        _TEXTS_LAWS,
    ),
    Mutant(
        "a URL that follows another is masked with it",
        _TEXTS,
        "(?:(?![\\s,;|\\\"'<(\\[]\\w[\\w+.:-]*://)[^\\n])+",
        "[^\\n]+",
        _TEXTS_TEST,
    ),
    Mutant(
        "a path with an @ counts as user and password",
        _TEXTS,
        "    if at and _USER_AND_PASSWORD.match(credentials):\n",
        "    if at:\n",
        _TEXTS_TEST,
    ),
    Mutant(
        "a user without a password is shown",
        _TEXTS,
        '    elif user := _USER.match(url):\n        url = f"{HIDDEN}@{url[user.end() :]}"\n',
        "",
        _TEXTS_TEST,
    ),
    Mutant(
        "the parameters of URLs are shown",
        _TEXTS,
        '    return re.sub(r"^\\S+", lambda found: _PARAMETER.sub(_masked_parameter, found[0]), url)\n',
        "    return url\n",
        _TEXTS_TEST,
    ),
    Mutant(
        "the message after a URL is masked with its parameters",
        _TEXTS,
        '    return re.sub(r"^\\S+", lambda found: _PARAMETER.sub(_masked_parameter, found[0]), url)\n',
        "    return _PARAMETER.sub(_masked_parameter, url)\n",
        _TEXTS_TEST,
    ),
    Mutant(
        "a parameter without a name is shown",
        _TEXTS,
        '''return f"{separator}{name or ''}{HIDDEN if value else ''}"''',
        '''return f"{separator}{name or ''}{HIDDEN if name and value else value}"''',
        _TEXTS_TEST,
    ),
    Mutant(
        "the parameters of a path are shown up to the end of the line",
        _TEXTS,
        '    text = _NAMED_PARAMETER.sub(rf"\\1{HIDDEN}", text)\n',
        "",
        _TEXTS_TEST,
    ),
    # Connection strings
    Mutant(
        "a password without a scheme is shown",
        _TEXTS,
        "    if at and (found := _CREDENTIALS.search(credentials)):\n",
        "    if False and (found := _CREDENTIALS.search(credentials)):\n",
        _TEXTS_TEST,
    ),
    Mutant(
        "a password without a scheme is shown from its first @ on",
        _TEXTS,
        'credentials, at, host = word.rpartition("@")',
        'credentials, at, host = word.partition("@")',
        _TEXTS_TEST,
    ),
    Mutant(
        "the host of a URL counts as a user without a scheme",
        _TEXTS,
        '_WORD = re.compile(r"(?:(?!://)\\S)+")',
        '_WORD = re.compile(r"\\S+")',
        _TEXTS_TEST,
    ),
    Mutant(
        "a Windows path counts as user and password", _TEXTS, "(?:[a-z]|file):[/\\\\]|", "file:[/\\\\]|", _TEXTS_TEST
    ),
    Mutant(
        "a regular expression counts as user and password",
        _TEXTS,
        "|[^/,:@]*(?:\\(\\?|\\[\\^|\\[:))[^/,:@]*:",
        ")[^/,:@]*:",
        _TEXTS_TEST,
    ),
    Mutant(
        "a password of Oracle is shown",
        _TEXTS,
        "    if _ORACLE_USER.match(credentials) and _ORACLE_HOST.match(host):\n",
        "    if False:\n",
        _TEXTS_TEST,
    ),
    Mutant(
        "any word with a slash and an @ counts as a password of Oracle",
        _TEXTS,
        "    if _ORACLE_USER.match(credentials) and _ORACLE_HOST.match(host):\n",
        "    if _ORACLE_USER.match(credentials):\n",
        _TEXTS_TEST,
    ),
    Mutant(
        "a line number counts as a port of Oracle",
        _TEXTS,
        ":\\d{4,5}(?!\\d)",
        ":\\d{1,5}(?!\\d)",
        _TEXTS_TEST,
    ),
    # Values that a text names
    Mutant(
        "a property that is a secret is shown",
        _TEXTS,
        "    text = _without_named_values(text)\n",
        "",
        _TEXTS_LAWS,
    ),
    Mutant("a Pwd of ODBC is shown", _TEXTS, 'r"|pwd|(?<![a-z])', 'r"|(?<![a-z])', _TEXTS_TEST),
    Mutant(
        "a name that ends like that of a secret counts as one",
        _TEXTS,
        "|(?<![a-z])(?:pass|pw|sig)",
        "|(?:pass|pw|sig)",
        _TEXTS_TEST,
    ),
    Mutant(
        "a key of Azure is shown",
        _TEXTS,
        "(?:access|account|api|auth|private|shared)[ _-]?key",
        "(?:api|auth|private)[ _-]?key",
        _TEXTS_TEST,
    ),
    Mutant(
        "a property that is a secret is shown from its first semicolon on",
        _TEXTS,
        "(?:(?!{_NEXT_PROPERTY})[^\\n])+",
        "[^;\\n]+",
        _TEXTS_TEST,
    ),
    Mutant(
        "the property after a secret is masked with it",
        _TEXTS,
        "(?:(?!{_NEXT_PROPERTY})[^\\n])+",
        "[^\\n]+",
        _TEXTS_TEST,
    ),
    Mutant(
        "an error about a setting of a secret is hidden",
        _TEXTS,
        "(?:{_BLANKS}=|\\\\?[\\\"']{_BLANKS}[=:])",
        "(?:{_BLANKS}=|\\\\?[\\\"']?{_BLANKS}[=:])",
        _TEXTS_TEST,
    ),
    Mutant(
        "what is shown of a secret is masked again, with what follows",
        _TEXTS,
        "(?!{_BLANKS}\\[hidden\\])",
        "",
        _TEXTS_TEST,
    ),
    Mutant(
        "a secret takes the next line with it", _TEXTS, '_BLANKS = r"[ \\t]{0,9}"', '_BLANKS = r"\\s{0,9}"', _TEXTS_TEST
    ),
    Mutant(
        "an undeclared setting whose text names a secret is shown",
        _TEXTS,
        " or _NAMED_SECRET.search(text):\n",
        ":\n",
        _TEXTS_TEST,
    ),
    # Settings
    Mutant(
        "the converters of keys count as secrets",
        _TEXTS,
        "    return not name.startswith(_ABOUT_RECORDS) and not",
        "    return not",
        _TEXTS_TEST,
    ),
    Mutant(
        "the URLs of settings show their passwords",
        _MASKS,
        "else without_secrets(text) for name, text in config.items()",
        "else text for name, text in config.items()",
        _MASKS_TEST,
    ),
    Mutant(
        "the settings of an unknown class are shown",
        _MASKS,
        "    if definition is None:\n        return True\n",
        "    if definition is None:\n        return may_be_secret(name, text)\n",
        _MASKS_TEST,
    ),
    Mutant(
        "a mistyped password is shown",
        _MASKS,
        "    return mistyped or may_be_secret(",
        "    return may_be_secret(",
        _MASKS_TEST,
    ),
    Mutant(
        "a hidden text within a changed one is stored",
        _MASKS,
        "    if (given := text.strip()) != HIDDEN and given != without_secrets(stored).strip():\n",
        "    if False:\n",
        _MASKS_TEST,
    ),
    Mutant(
        "an error about a setting quotes the password in a URL",
        _TYPES,
        "    text = without_secrets(text)\n    return repr(text)",
        "    return repr(text)",
        _KEY_TEST,
    ),
    Mutant(
        "the error of a connector's check quotes the password in a URL",
        _CHECKS,
        "tuple(without_secrets(text, secrets) for text in texts)",
        "tuple(texts)",
        _CHECKS_TEST,
    ),
    Mutant(
        "the error of a connector's check quotes a password",
        _CHECKS,
        "without_secrets(text, secrets) for text",
        "without_secrets(text) for text",
        _CHECKS_TEST,
    ),
    Mutant(
        "a report about settings shows the password in a URL",
        _CHECKS,
        "value and without_secrets(value)",
        "value",
        _CHECKS_TEST,
    ),
    # Requests
    Mutant(
        "the token goes to a URL that no worker has registered",
        "workers/rest/request_forwarding.py",
        "if not await self._control.is_registered(target):",
        "if False:",
        "tests/unit/workers/rest/test_request_forwarding.py",
    ),
    Mutant(
        "a secret that changes while settings are checked is undone",
        "workers/execution/worker_requests.py",
        "!= whole:\n                raise _SettingsChangedError",
        "!= whole:\n                pass",
        "tests/sim/test_worker_requests.py",
    ),
    Mutant(
        "other machines have a worker import any module",
        "workers/execution/worker_settings.py",
        "if allowed is None and not is_loopback(self.rest.host):",
        "if False:",
        "tests/unit/workers/execution/test_worker_settings.py",
    ),
    # Failures
    Mutant(
        "a log line about failed work shows a password",
        _TEXTS,
        "_shown(summary, values) or",
        "summary or",
        _KEPT_WORK_TEST,
    ),
    Mutant(
        "the trace of failed work shows a password",
        _TEXTS,
        "parts.append(_shown(part, values))",
        "parts.append(part)",
        _KEPT_WORK_TEST,
    ),
    Mutant(
        "the error of failed work shows a declared password",
        _RUNNERS,
        "        return error_texts(error, self._secrets(spec))\n",
        "        return error_texts(error)\n",
        _KEPT_WORK_TEST,
    ),
    Mutant(
        "each open quote of a text is searched to the end of its line",
        _TEXTS,
        "        if start >= open_until.get(first, start + 1):\n",
        "        if first in _ENCLOSED:\n",
        _GROWTH_LAWS,
    ),
)
