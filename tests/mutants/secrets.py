"""A secret appears in no answer, status, log line or znode that others read."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

__all__ = ["MUTANTS"]

MUTANTS = (
    Mutant(
        "a password that is not encoded is shown from its first @ on",
        "secret_texts.py",
        'credentials, at, rest = url.rpartition("@")',
        'credentials, at, rest = url.partition("@")',
        "tests/property/test_secret_texts_laws.py",
    ),
    Mutant(
        "a password with a blank is shown",
        "secret_texts.py",
        "\\w[\\w+.:-]*://)[^\\n])+",
        "\\w[\\w+.:-]*://)\\S)+",
        "tests/property/test_secret_texts_laws.py",
    ),
    Mutant(
        "a password without a scheme is shown",
        "secret_texts.py",
        "    if at and (found := _CREDENTIALS.search(credentials)):\n",
        "    if False and (found := _CREDENTIALS.search(credentials)):\n",
        "tests/unit/test_secret_texts.py",
    ),
    Mutant(
        "a property that is a secret is shown",
        "secret_texts.py",
        "    text = _without_named_values(text)\n",
        "",
        "tests/property/test_secret_texts_laws.py",
    ),
    Mutant(
        "a key of Azure is shown",
        "secret_texts.py",
        "(?:access|account|api|auth|private|shared)[ _-]?key",
        "(?:api|auth|private)[ _-]?key",
        "tests/unit/test_secret_texts.py",
    ),
    Mutant(
        "an undeclared setting whose text names a secret is shown",
        "secret_texts.py",
        " or _NAMED_SECRET.search(text):\n",
        ":\n",
        "tests/unit/test_secret_texts.py",
    ),
    Mutant(
        "the settings of an unknown class are shown",
        "workers/plugins/connector_checks.py",
        "    if definition is None:\n        return True\n",
        "    if definition is None:\n        return may_be_secret(name, text)\n",
        "tests/unit/workers/plugins/test_secret_masks.py",
    ),
    Mutant(
        "a mistyped password is shown",
        "workers/plugins/connector_checks.py",
        "    return mistyped or may_be_secret(",
        "    return may_be_secret(",
        "tests/unit/workers/plugins/test_secret_masks.py",
    ),
    Mutant(
        "a hidden text within a changed one is stored",
        "workers/plugins/connector_checks.py",
        "    if (given := text.strip()) != HIDDEN and given != without_secrets(stored).strip():\n",
        "    if False:\n",
        "tests/unit/workers/plugins/test_secret_masks.py",
    ),
    Mutant(
        "an error about a setting quotes the password in a URL",
        "workers/plugins/config_definition.py",
        "    text = without_secrets(text)\n    return repr(text)",
        "    return repr(text)",
        "tests/unit/workers/plugins/test_config_key.py",
    ),
    Mutant(
        "the error of a connector's check quotes a password",
        "workers/plugins/connector_checks.py",
        "without_secrets(text, secrets) for text",
        "without_secrets(text) for text",
        "tests/unit/workers/plugins/test_connector_checks.py",
    ),
    Mutant(
        "a report about settings shows the password in a URL",
        "workers/plugins/connector_checks.py",
        "value and without_secrets(value)",
        "value",
        "tests/unit/workers/plugins/test_connector_checks.py",
    ),
    Mutant(
        "a log line about failed work shows a password",
        "secret_texts.py",
        "_shown(summary, values) or",
        "summary or",
        "tests/sim/test_kept_work.py",
    ),
    Mutant(
        "the trace of failed work shows a password",
        "secret_texts.py",
        "parts.append(_shown(part, values))",
        "parts.append(part)",
        "tests/sim/test_kept_work.py",
    ),
    Mutant(
        "an error shows the value of a setting",
        "group/znodes/worker_contents.py",
        'should have settings, texts by name")',
        'should have settings, texts by name, found {found}")',
        "tests/unit/group/znodes/test_worker_contents.py",
    ),
    Mutant(
        "the token goes to a URL that no worker has registered",
        "workers/rest/operations.py",
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
    Mutant(
        "the error of failed work shows a declared password",
        "workers/execution/worker_plugins.py",
        "make(self._secrets(spec))",
        "make(())",
        "tests/sim/test_kept_work.py",
    ),
    Mutant(
        "each open quote of a text is searched to the end of its line",
        "secret_texts.py",
        "        if start >= open_until.get(first, start + 1):\n",
        "        if first in _ENCLOSED:\n",
        "tests/property/test_growth_laws.py",
    ),
)
