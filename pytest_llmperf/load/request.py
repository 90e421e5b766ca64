"""The bytes of a request, all made before it is due."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from pytest_llmperf.errors import UsageError
from pytest_llmperf.load.dialects import DIALECTS
from pytest_llmperf.records import Api, Arrival, Endpoint

if TYPE_CHECKING:
    from pytest_llmperf.load.texts import Prompt
    from pytest_llmperf.plan import Workload

__all__ = ["PreparedRequest", "body", "encode"]

_OURS: Final = frozenset({"host", "content-length", "transfer-encoding", "connection", "expect"})
_TOKEN: Final = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+\Z")
_VALUE: Final = re.compile(r"[\t\x20-\x7e\x80-\xff]*\Z")


@dataclass(frozen=True, slots=True)
class PreparedRequest:
    """A planned request and the bytes that it puts on the wire (secret: they hold the API key)."""

    arrival: Arrival
    wire: bytes
    api: Api = "chat"
    """How the response is to be read."""
    stream: bool = True
    """False: the reply comes as a whole."""
    keep_text: bool = False
    """Keep the output's text in the record, for a tokenizer."""

    def __repr__(self) -> str:
        return f"PreparedRequest({self.arrival!r}, {len(self.wire)} bytes)"


def body(
    model: str,
    workload: Workload,
    prompt: Prompt,
    max_tokens: int,
    extras: Mapping[str, Any] | None = None,
    *,
    stream: bool = True,
    sampling: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """The JSON object of one request, streamed (with final usage where the API has that) or as a whole.

    ``prompt`` is a text, or the messages of a chat. ``extras`` are the engine's own fields (``ignore_eos``,
    ``cache_prompt`` …); a mapping among them is merged into the one it meets, so
    ``{"stream_options": {"continuous_usage_stats": True}}`` adds to ours. ``sampling`` (default: the workload's) comes
    last, where the API wants such fields, and replaces whatever it names.
    """
    dialect = DIALECTS[workload.api]
    sampling = workload.sampling if sampling is None else sampling
    return dialect.body(model, prompt, max_tokens, stream=stream, extras=extras, sampling=sampling)


def encode(endpoint: Endpoint, api: Api, fields: Mapping[str, Any], *, stream: bool = True) -> bytes:
    """The whole HTTP/1.1 request: head and JSON body.

    Raises UsageError where a header of the endpoint could not be sent as one header; the value is not shown.
    """
    from urllib.parse import quote, urlsplit  # a client process has no use for it

    dialect = DIALECTS[api]
    content = json.dumps(fields, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode()
    base = quote(urlsplit(endpoint.base_url).path.rstrip("/"), safe="/%:@!$&'()*+,;=~-._")
    path = base + dialect.route(endpoint.model, stream=stream)
    headers = {
        "Host": _authority(endpoint),
        "User-Agent": "pytest-llmperf",
        "Accept": dialect.accept if stream else "application/json",
        "Accept-Encoding": "identity",
        "Content-Type": "application/json",
    }
    given = {name.lower() for name in endpoint.headers}
    headers = {name: value for name, value in headers.items() if name.lower() not in given - _OURS}
    for name, value in endpoint.headers.items():
        if not _TOKEN.match(name) or name.lower() in _OURS:
            raise UsageError(f"{endpoint.base_url}: header {name!r} cannot be set on a request")
        if not _VALUE.match(value):
            raise UsageError(f"{endpoint.base_url}: the value of header {name!r} has a character no header may have")
        headers[name] = value
    headers["Content-Length"] = str(len(content))
    lines = [f"POST {path} HTTP/1.1", *(f"{name}: {value}" for name, value in headers.items())]
    return "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n" + content


def _authority(endpoint: Endpoint) -> str:
    """``host[:port]`` as the Host header wants it: brackets round an IPv6 address, no default port, no zone."""
    host = endpoint.host.strip("[]").partition("%")[0]
    if ":" in host:
        host = f"[{host}]"
    elif not host.isascii():
        host = host.encode("idna").decode()
    if not re.fullmatch(r"[\[\]A-Za-z0-9._:-]+", host):
        raise UsageError(f"{endpoint.base_url}: {host!r} is not a host name")
    return host if endpoint.port == (443 if endpoint.tls else 80) else f"{host}:{endpoint.port}"
