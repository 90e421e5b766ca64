"""What a running server says: is it ready, which models, which engine, one tiny answer."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import httpx

from pytest_llmperf.control.client import causes, fetch, json_of, post, server_message, text_of
from pytest_llmperf.engines import ENGINES, Engine
from pytest_llmperf.engines.engine import Documents, mapping
from pytest_llmperf.errors import ConfigError, TargetError
from pytest_llmperf.load.dialects import DIALECTS
from pytest_llmperf.load.http1 import ProtocolError
from pytest_llmperf.load.texts import Prompt
from pytest_llmperf.plan import ServerSpec
from pytest_llmperf.records import Api, Endpoint

__all__ = [
    "Answer",
    "absent",
    "ask",
    "ask_any",
    "choose_model",
    "documents",
    "fingerprint",
    "launched_model",
    "list_models",
    "marked",
    "only_model",
    "recognise",
    "unready",
]

OPENAI: Final[tuple[Api, ...]] = ("chat", "completions")
_SHOWN_MODELS: Final = 10
_NO_SUCH_API: Final = (httpx.codes.NOT_FOUND, httpx.codes.METHOD_NOT_ALLOWED, httpx.codes.NOT_IMPLEMENTED)
_NOBODY: Final = (502, 504)
"""What gateways say that have nobody to ask."""
_NOT_NOW: Final = (404, 503)
"""Some of them say that; and so does a server that is loading, or has no such path."""
_HEALTH_SECONDS: Final = 3.0
"""Short, so that the end of the process is noticed between two tries; but some engines take a second to answer."""


@dataclass(frozen=True, slots=True)
class Answer:
    """The facts of one non-streamed answer; None where the server doesn't state them."""

    prompt_tokens: int | None
    output_tokens: int | None
    system_fingerprint: str | None


def unready(client: httpx.Client, path: str) -> str | None:
    """Why ``path`` does not answer with 200 now; None where it does."""
    try:
        response = fetch(client, path, seconds=_HEALTH_SECONDS)
    except TargetError as error:
        return error.problem
    ready = response.status_code == httpx.codes.OK
    return None if ready else f"HTTP {response.status_code}: {server_message(response)}"


def absent(client: httpx.Client, path: str, *, answered: bool) -> bool:
    """Whether nothing serves ``path``, for all that can be told: a refused connection, or a gateway with no server.

    ``answered``: it has been 200 before. A server that takes connections and does not answer is there; and one that
    can't be reached may be.
    """
    try:
        return fetch(client, path, seconds=_HEALTH_SECONDS).status_code in (*_NOBODY, *(_NOT_NOW if answered else ()))
    except TargetError as error:
        return any(isinstance(cause, ConnectionRefusedError) for cause in causes(error))


def list_models(client: httpx.Client) -> Mapping[str, Any]:
    """``/v1/models`` as the server gives it. Raises TargetError where that isn't an OpenAI model list."""
    response = fetch(client, "/v1/models")
    url = str(response.url)
    if response.status_code == httpx.codes.NOT_FOUND:
        problem = "HTTP 404: no OpenAI-compatible API here; give the address without /v1, e.g. http://host:8000"
        raise TargetError(url, problem)
    if response.status_code != httpx.codes.OK:
        raise TargetError(url, f"HTTP {response.status_code}: {server_message(response)}")
    try:
        document = json_of(response)
    except ValueError as error:
        raise TargetError(url, "no OpenAI-compatible API here: the answer is not JSON") from error
    if not isinstance(mapping(document).get("data"), list):
        raise TargetError(url, "no OpenAI-compatible API here: the answer is no list of models")
    return mapping(document)


def only_model(client: httpx.Client, engine: Engine, spec: ServerSpec) -> Mapping[str, Any]:
    """What ``list_models`` would give for an engine that has no such list: the model that ``spec`` names.

    Raises ConfigError where it names none, TargetError where the server is not ready.
    """
    if not spec.model:
        raise ConfigError(f"servers.{spec.name}", "model", f"{engine.title} does not list its models; name the model")
    response = fetch(client, engine.ready_path)
    if response.status_code != httpx.codes.OK:
        raise TargetError(str(response.url), f"HTTP {response.status_code}: {server_message(response)}")
    return {"data": [{"id": spec.model}]}


def launched_model(
    client: httpx.Client, endpoint: Endpoint, engine: Engine, model: str
) -> tuple[Mapping[str, Any], str]:
    """``/v1/models`` and the name that requests carry, of a server that was started with ``model``.

    It's the one model that is listed, whatever it's called there; where there are several, ``model``. Raises
    TargetError.
    """
    if not engine.lists_models:
        return {"data": [{"id": model}]}, model
    models = list_models(client)
    several = len(models["data"]) > 1
    return models, choose_model(endpoint.base_url, models, model if several else None)


def choose_model(url: str, models: Mapping[str, Any], wanted: str | None) -> str:
    """The name that requests carry: ``wanted`` if it is served, else the only model.

    Raises TargetError that lists what there is where neither holds.
    """
    names = [str(mapping(entry).get("id")) for entry in models["data"] if mapping(entry).get("id")]
    listed = ", ".join(names[:_SHOWN_MODELS]) + (f" and {len(names) - 10} more" if len(names) > _SHOWN_MODELS else "")
    if wanted is not None:
        aliases = [alias for entry in models["data"] for alias in mapping(entry).get("aliases") or ()]
        if wanted in names or wanted in aliases:
            return wanted
        raise TargetError(url, f"there is no model {wanted!r}; it serves: {listed or 'none'}")
    if len(names) != 1:
        problem = (
            f"it serves {len(names)} models; choose one with model = ...: {listed}" if names else "it serves no model"
        )
        raise TargetError(url, problem)
    return names[0]


def recognise(client: httpx.Client, models: Mapping[str, Any], configured: Engine, url: str) -> Engine:
    """The engine by ``owned_by`` in ``models``; ``configured`` where that says nothing.

    ``openai`` as configured means "find out": then what the server answers elsewhere tells too. Raises TargetError
    where another engine answers than the configured.
    """
    owners = {str(mapping(entry).get("owned_by")) for entry in models["data"]}
    if owners & configured.owned_by:
        return configured
    found = next((engine for engine in ENGINES.values() if owners & engine.owned_by), None)
    if found is None and configured.name == "openai":
        found = marked(client)
    if found is None:
        return configured
    if configured.name != "openai":
        problem = f"engine = {configured.name!r} is configured, but {found.title} answers (engine = {found.name!r})"
        raise TargetError(url, problem)
    return found


def marked(client: httpx.Client) -> Engine | None:
    """The first engine whose mark the server bears."""
    return next((engine for engine in ENGINES.values() if _bears_mark(client, engine)), None)


def _bears_mark(client: httpx.Client, engine: Engine) -> bool:
    if engine.mark is None:
        return False
    path, key, *value = engine.mark
    try:
        response = fetch(client, path)
        answer = mapping(json_of(response)) if response.status_code == httpx.codes.OK else {}
        return key in answer and value in ([], [answer[key]])
    except (TargetError, ValueError):
        return False


def documents(client: httpx.Client, engine: Engine, models: Mapping[str, Any]) -> Documents:
    """What ``engine.read_facts`` reads: ``models`` and whatever of the engine's other paths answers."""
    found: dict[str, Any] = {"/v1/models": models}
    for path in engine.info_paths:
        try:
            response = fetch(client, path)
        except TargetError:
            continue
        if response.status_code == httpx.codes.OK:
            try:
                found[path] = json_of(response)
            except ValueError:
                found[path] = text_of(response)
    return found


def ask(client: httpx.Client, endpoint: Endpoint, api: Api, prompt: Prompt, extras: Mapping[str, Any]) -> Answer:
    """One non-streamed answer of one token to ``prompt``. Raises TargetError with the server's message."""
    dialect = DIALECTS[api]
    path = dialect.route(endpoint.model, stream=False)
    # TGI takes no temperature of 0, is greedy without one, and counts the prompt only where it shows its tokens.
    sampling = {"decoder_input_details": True} if api == "tgi" else {"temperature": 0}
    body = dialect.body(endpoint.model, prompt, 1, stream=False, extras=extras, sampling=sampling)
    document = mapping(post(client, path, body))
    reader = dialect.reader()
    try:
        reader.take_whole(json.dumps(document))
    except ProtocolError as error:
        raise TargetError(endpoint.base_url + path, str(error)) from None
    if reader.error is not None or not (document.get("choices") or api not in OPENAI):
        raise TargetError(endpoint.base_url + path, reader.error or "the answer holds no choices")
    found = document.get("system_fingerprint")
    return Answer(reader.prompt_tokens, reader.output_tokens, found if isinstance(found, str) and found else None)


def ask_any(client: httpx.Client, endpoint: Endpoint, apis: Sequence[Api] | None) -> Answer:
    """One answer by the first of ``apis`` (None: of all that we speak) that the server has; ``completions`` goes first.

    Raises TargetError that tells of all that were tried."""
    missing: list[TargetError] = []
    for api in sorted(apis or DIALECTS, key=lambda each: each != "completions"):
        try:
            return ask(client, endpoint, api, "Hello", {})
        except TargetError as error:
            if error.status not in _NO_SUCH_API:
                raise
            missing.append(error)
    problem = "; ".join([missing[0].problem, *map(str, missing[1:])])
    raise TargetError(missing[0].url, problem, missing[0].status)


def fingerprint(client: httpx.Client, endpoint: Endpoint) -> str | None:
    """The server's ``system_fingerprint``, by which a change of version or parallelism shows.

    A server may lack either API; the load, which knows the one it needs, reports that better than we could.
    """
    for api in OPENAI:
        try:
            return ask(client, endpoint, api, "Hello", {}).system_fingerprint
        except TargetError:
            continue
    return None
