"""A server that someone else runs: address, key, engine and model, or one clear line about what is wrong."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any
from urllib.parse import unquote, urlsplit

from pytest_llmperf.control.client import Client, open_client
from pytest_llmperf.control.identify import read_identity
from pytest_llmperf.control.probe import choose_model, fingerprint, list_models, marked, only_model, recognise
from pytest_llmperf.engines import Engine, engine_of
from pytest_llmperf.errors import ConfigError, TargetError
from pytest_llmperf.identity import Identity
from pytest_llmperf.plan import ServerSpec
from pytest_llmperf.records import Endpoint

__all__ = ["base_url", "connect", "request_headers", "socket_path"]


def connect(spec: ServerSpec) -> tuple[Endpoint, Identity]:
    """The endpoint and identity of the server at ``spec.url``.

    Raises ConfigError where the URL, the key variable or the engine name is wrong, TargetError where the server
    refuses, is no OpenAI-compatible one, is of another engine than configured or lacks the model.
    """
    configured = engine_of(spec)
    path = socket_path(spec)
    base, host, port, tls = (
        base_url(spec.url or "") if path is None else (f"http://localhost{path[1]}", "localhost", 80, False)
    )
    place = None if path is None else path[0]
    headers = request_headers(spec)
    endpoint = Endpoint(base, host, port, tls, spec.model or "", configured.name, headers, place)
    with open_client(endpoint, ca_file=spec.ca_file, timeout=spec.limits.connect) as client:
        models = _models(client, configured, spec)
        engine = recognise(client, models, configured, base)
        model = choose_model(base, models, spec.model)
        endpoint = Endpoint(base, host, port, tls, model, engine.name, headers, place)
        client.timeout = spec.limits.first_token
        identity = read_identity(
            endpoint, spec, engine, client=client, models=models, fingerprint=fingerprint(client, endpoint)
        )
    return endpoint, identity


def _models(client: Client, configured: Engine, spec: ServerSpec) -> Mapping[str, Any]:
    """``/v1/models``, or the model that ``spec`` names where the server is of an engine without such a list."""
    if not configured.lists_models:
        return only_model(client, configured, spec)
    try:
        return list_models(client)
    except TargetError:
        other = marked(client) if configured.name == "openai" else None
        if other is None or other.lists_models:
            raise
        return only_model(client, other, spec)


def socket_path(spec: ServerSpec) -> tuple[str, str] | None:
    """The Unix socket of ``unix:///run/llm.sock`` or ``http+unix://%2Frun%2Fllm.sock/prefix``, and the prefix.

    None for every other URL. Raises ConfigError for one of these without a path from the root.
    """
    url = (spec.url or "").strip()
    scheme, mark, rest = url.partition("://")
    if not mark or scheme not in ("unix", "http+unix"):
        return None
    place, slash, prefix = (rest, "", "") if scheme == "unix" else rest.partition("/")
    place = unquote(place)
    if not place.startswith("/"):
        example = "unix:///run/llm.sock" if scheme == "unix" else "http+unix://%2Frun%2Fllm.sock"
        raise ConfigError(f"servers.{spec.name}", "url", f"{url!r} names no path from the root, as {example} does")
    return place, f"{slash}{prefix}".rstrip("/").removesuffix("/v1").rstrip("/")


def base_url(url: str) -> tuple[str, str, int, bool]:
    """``url``, which ``ServerSpec`` has checked, without ``/v1`` and slashes, its host, its port, whether it is TLS."""
    parts = urlsplit(url)
    assert parts.hostname is not None
    tls = parts.scheme == "https"
    path = parts.path.rstrip("/").removesuffix("/v1").rstrip("/")
    return f"{parts.scheme}://{parts.netloc}{path}", parts.hostname, parts.port or (443 if tls else 80), tls


def request_headers(spec: ServerSpec) -> dict[str, str]:
    """What every request carries: the key out of ``api_key_env``. Raises ConfigError where there is none."""
    if spec.api_key_env is None:
        return {}
    key = os.environ.get(spec.api_key_env, "").strip()
    if not key:
        state = "empty" if spec.api_key_env in os.environ else "not set"
        raise ConfigError(
            f"servers.{spec.name}", "api_key_env", f"the environment variable {spec.api_key_env} is {state}"
        )
    if not key.isascii() or not key.isprintable():
        problem = f"the value of {spec.api_key_env} holds characters that no header may hold"
        raise ConfigError(f"servers.{spec.name}", "api_key_env", problem)
    return {"Authorization": f"Bearer {key}"}
