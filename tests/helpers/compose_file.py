"""The services of docker-compose.yml."""

from __future__ import annotations

import json
from typing import Any

from ruamel.yaml import YAML

from tests.helpers.commands import REPOSITORY

COMPOSE = REPOSITORY / "docker-compose.yml"


def services() -> dict[str, Any]:
    with COMPOSE.open(encoding="utf-8") as file:
        return json.loads(json.dumps(YAML(typ="safe").load(file)["services"]))  # type: ignore[no-any-return]
