"""Requests to the service whose answers are checked against its description."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from typing import Any
from urllib.parse import urlsplit

from jsonschema import Draft202012Validator

from kiel_groups.service.api import Api
from kiel_groups.service.openapi import describe
from tests.helpers.rest_requests import Got, ask

__all__ = ["ask_described", "description"]


async def ask_described(
    url: str, method: str = "GET", body: object = None, headers: Mapping[str, str] | None = None
) -> Got:
    """Send a request, and check the answer against the description of the service, if this has the path."""
    got = await ask(url, method, body, headers)
    for template, operations in description()["paths"].items():
        if re.fullmatch(re.sub(r"\{\w+\}", "[^/]+", template), urlsplit(url).path) and method.lower() in operations:
            responses = operations[method.lower()]["responses"]
            answer = responses.get(str(got.status), responses["default"])
            schema = answer["content"]["application/json"]["schema"]
            Draft202012Validator({**schema, "components": description()["components"]}).validate(got.document)
    return got


@cache
def description() -> dict[str, Any]:
    """Return the description of a service that shows no cluster."""
    return describe(Api({}).routes(), ())
