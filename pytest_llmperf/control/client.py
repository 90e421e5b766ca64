"""The HTTP client for everything but load, and what its failures mean in the user's terms."""

from __future__ import annotations

import json
import os
import socket
import ssl
import time
from collections.abc import Iterator, Mapping
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any, Final

import httpx

from pytest_llmperf.engines.loglines import plain
from pytest_llmperf.errors import ConfigError, TargetError
from pytest_llmperf.load.tls import tls_context
from pytest_llmperf.records import Endpoint

__all__ = ["Client", "causes", "fetch", "json_of", "open_client", "post", "server_message", "text_of"]

Client = httpx.Client
"""For annotations elsewhere: ``httpx`` itself is imported in this folder only."""

_CONNECT_SECONDS: Final = 10.0
_MESSAGE_CHARACTERS: Final = 300
_MAX_ANSWER: Final = 16 * 1024 * 1024
_SECRET_HEADERS: Final = ("authorization", "api-key", "x-api-key")
_KEY_OPTION: Final = "--llmperf-api-key-env NAME"


def open_client(endpoint: Endpoint, *, ca_file: Path | None = None, timeout: float = 30.0) -> httpx.Client:
    """A client for ``endpoint``; paths are relative to its ``base_url``. ``timeout`` is in seconds per read.

    Proxy variables of the environment are ignored: the load doesn't go through a proxy either, and both must reach
    the same server. Raises ConfigError where ``ca_file`` can't be used.
    """
    verify: ssl.SSLContext | bool = False  # plain HTTP: spares the loading of certificates
    if endpoint.tls:
        try:
            verify = tls_context(ca_file)
        except OSError as error:
            raise ConfigError("servers", "ca_file", f"{ca_file} can't be used: {error}") from error
    return httpx.Client(
        transport=None if endpoint.socket is None else httpx.HTTPTransport(uds=endpoint.socket),
        event_hooks={} if endpoint.socket is None else {"request": [partial(_require_listener, endpoint.socket)]},
        base_url=endpoint.base_url,
        headers=dict(endpoint.headers),
        verify=verify,
        trust_env=False,
        follow_redirects=False,
        timeout=httpx.Timeout(timeout, connect=min(timeout, _CONNECT_SECONDS)),
    )


def fetch(client: httpx.Client, path: str, seconds: float | None = None) -> httpx.Response:
    """GET ``path``. Raises TargetError where there is no answer, a redirect, or a refusal for want of a key.

    ``seconds`` to wait for all of it; None: as ``open_client`` was told."""
    if seconds is None:
        return _answer(client, client.build_request("GET", path))
    return _answer(client, client.build_request("GET", path, timeout=seconds), seconds)


def post(client: httpx.Client, path: str, body: Mapping[str, Any]) -> Any:
    """POST ``body`` as JSON and return the parsed answer. Raises TargetError for anything but 200 with JSON."""
    response = _answer(client, client.build_request("POST", path, json=dict(body)))
    if response.status_code != httpx.codes.OK:
        problem = f"HTTP {response.status_code}: {server_message(response)}"
        raise TargetError(str(response.url), problem, response.status_code)
    try:
        return json_of(response)
    except ValueError as error:
        problem = "the answer is not JSON, though a request without a stream asks for it"
        raise TargetError(str(response.url), problem) from error


def text_of(response: httpx.Response) -> str:
    """The body, whatever its headers say of it."""
    try:
        return response.text
    except (UnicodeError, LookupError):
        return response.content.decode("utf-8", "replace")


def json_of(response: httpx.Response) -> Any:
    """The body as JSON. Raises ValueError where it is none, or too deep to be read."""
    try:
        return response.json()
    except RecursionError:
        raise ValueError("the answer is nested too deeply") from None


def server_message(response: httpx.Response) -> str:
    """What the server says about its refusal, in one line; it may quote the key that it refuses."""
    text = text_of(response)
    for name in _SECRET_HEADERS:
        for secret in {response.request.headers.get(name, ""), *response.request.headers.get(name, "").split()[1:]}:
            text = text.replace(secret, "***") if secret else text
    try:
        document = json.loads(text)
    except ValueError:
        document = None
    if isinstance(document, dict):
        error = document.get("error", document)
        candidates = [error] if isinstance(error, str) else []
        if isinstance(error, dict):
            candidates += [error[key] for key in ("message", "detail", "error") if isinstance(error.get(key), str)]
        text = next(iter(candidates), text)
    line = " ".join(plain(text).split())
    return line[:_MESSAGE_CHARACTERS] or response.reason_phrase or "no message"


def _answer(client: httpx.Client, request: httpx.Request, seconds: float | None = None) -> httpx.Response:
    url = str(request.url)
    try:
        response = _whole(client.send(request, stream=True), seconds or client.timeout.read or 30.0)
    except httpx.HTTPError as error:
        raise TargetError(url, _no_answer(request, error)) from error
    except RecursionError as error:
        raise TargetError(url, "the answer is nested too deeply") from error
    if response.has_redirect_location or response.is_redirect:
        where = response.headers.get("location", "nowhere")
        raise TargetError(
            url, f"redirects to {where} (HTTP {response.status_code}); give the address of the API itself"
        )
    if response.status_code in (httpx.codes.UNAUTHORIZED, httpx.codes.FORBIDDEN):
        sent = "the API key was refused" if "authorization" in request.headers else "it wants an API key"
        problem = f"HTTP {response.status_code}: {sent} ({server_message(response)})"
        raise TargetError(url, f"{problem}; {_KEY_OPTION} names the environment variable that holds it")
    return response


def _require_listener(path: str, request: httpx.Request) -> None:
    """Raises ConnectError that names the Unix socket: the URL of ``request`` does not, and httpx leaves a socket open
    where it cannot connect."""
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(_CONNECT_SECONDS)
        try:
            code = probe.connect_ex(path)
            problem = os.strerror(code) if code else None
        except OSError as error:  # longer than an address can be
            problem = str(error)
    if problem is not None:
        raise httpx.ConnectError(f"nothing listens on the Unix socket {path}: {problem}", request=request)


def _whole(response: httpx.Response, seconds: float) -> httpx.Response:
    """The response with its body, which may take ``seconds`` and 16 MiB in all: httpx bounds single reads only."""
    deadline = time.monotonic() + seconds
    body = bytearray()
    with closing(response):
        for piece in response.iter_bytes():
            body += piece
            if len(body) > _MAX_ANSWER or time.monotonic() > deadline:
                limit = f"{seconds:g} s" if len(body) <= _MAX_ANSWER else f"{_MAX_ANSWER >> 20} MiB"
                raise TargetError(str(response.request.url), f"the answer is not complete within {limit}")
    headers = [pair for pair in response.headers.multi_items() if pair[0] not in ("content-encoding", "content-length")]
    return httpx.Response(response.status_code, headers=headers, content=bytes(body), request=response.request)


def _no_answer(request: httpx.Request, error: httpx.HTTPError) -> str:
    """Why there was no HTTP answer."""
    host, port = request.url.host, request.url.port or (443 if request.url.scheme == "https" else 80)
    for cause in causes(error):
        if isinstance(cause, ssl.SSLCertVerificationError):
            advice = "ca_file names the certificates to trust besides the system's"
            return f"its TLS certificate can't be verified: {cause.verify_message}; {advice}"
        if isinstance(cause, ssl.SSLError):
            return f"TLS failed ({cause.reason or cause}); does it speak plain http://?"
        if isinstance(cause, ConnectionRefusedError):
            return f"connection refused: nothing listens on port {port} of {host}"
        if isinstance(cause, socket.gaierror):
            return f"the host name {host!r} can't be resolved ({cause.strerror or cause})"
    if isinstance(error, httpx.TimeoutException):
        doing = "connection" if isinstance(error, httpx.ConnectTimeout) else "answer"
        limits = request.extensions.get("timeout", {})
        seconds = limits.get("connect" if doing == "connection" else "read")
        return f"no {doing} within {seconds:g} s" if seconds else f"no {doing} in time"
    if isinstance(error, httpx.RemoteProtocolError | httpx.DecodingError):
        return f"what answers is not HTTP ({error})"
    return f"no answer: {str(error) or type(error).__name__}"


def causes(error: BaseException | None) -> Iterator[BaseException]:
    """``error`` and all that led to it."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or error.__context__
