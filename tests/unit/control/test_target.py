"""A running server that refuses: one clear line for each way of refusing."""

from __future__ import annotations

import re
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from pytest_llmperf.control.calibrate import prompt_tokens
from pytest_llmperf.control.client import open_client
from pytest_llmperf.control.probe import unready
from pytest_llmperf.control.target import base_url, connect
from pytest_llmperf.errors import ConfigError, TargetError
from pytest_llmperf.plan import ServerSpec
from pytest_llmperf.records import Api, Endpoint
from pytest_llmperf.settings import Overrides, Settings, server_named

Serve = Callable[..., str]


def spec(url: str, engine: str = "openai", **fields: Any) -> ServerSpec:
    return ServerSpec.model_validate({"name": "s", "engine": engine, "url": url, **fields})


def models(*names: str, owner: str = "someone") -> dict[str, tuple[int, Any]]:
    return {"/v1/models": (200, {"object": "list", "data": [{"id": name, "owned_by": owner} for name in names]})}


def refusal(wanted: ServerSpec) -> str:
    with pytest.raises(TargetError) as caught:
        connect(wanted)
    message = str(caught.value)
    assert "\n" not in message
    return message


@contextmanager
def tcp(answer: bytes | None, trickle: float | None = None) -> Iterator[int]:
    """A server that says ``answer`` to whoever connects, or nothing at all; yields its port. ``trickle``: then a byte
    every so many seconds."""
    listener = socket.create_server(("127.0.0.1", 0))
    open_connections: list[socket.socket] = []

    def serve() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            open_connections.append(connection)
            if answer is not None:
                connection.recv(4096)
                connection.sendall(answer)
                with suppress(OSError):
                    while trickle is not None:
                        connection.sendall(b"x")
                        time.sleep(trickle)
                connection.close()

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield listener.getsockname()[1]
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join()
        for connection in open_connections:
            connection.close()


def test_a_unix_socket_without_a_server_is_named_by_its_path(tmp_path: Path) -> None:
    path = tmp_path / "llm.sock"
    missing = f"no answer: nothing listens on the Unix socket {path}: No such file or directory"
    assert missing in refusal(spec(f"unix://{path}"))
    assert "path too long" in refusal(spec(f"unix:///{'x' * 200}"))
    with socket.socket(socket.AF_UNIX) as listener:  # bound, but nobody listens
        listener.bind(str(path))
        quoted = str(path).replace("/", "%2F")
        for url in (f"unix://{path}", f"http+unix://{quoted}/prefix"):
            said = refusal(spec(url))
            assert f"no answer: nothing listens on the Unix socket {path}: Connection refused" in said
            assert "port" not in said


def test_nothing_listens() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    assert f"connection refused: nothing listens on port {port} of 127.0.0.1" in refusal(
        spec(f"http://127.0.0.1:{port}")
    )


def test_host_that_has_no_address() -> None:
    assert "the host name 'no-such-host.invalid' can't be resolved" in refusal(spec("http://no-such-host.invalid:8000"))


def test_silence_is_a_time_out() -> None:
    with tcp(None) as port:
        assert "no answer within 0.2 s" in refusal(spec(f"http://127.0.0.1:{port}", limits={"connect": "200 ms"}))


def test_what_answers_is_not_http() -> None:
    with tcp(b"SSH-2.0-OpenSSH_9.2\r\n") as port:
        assert "what answers is not HTTP" in refusal(spec(f"http://127.0.0.1:{port}"))


def test_plain_http_behind_https() -> None:
    with tcp(b"HTTP/1.1 400 Bad Request\r\n\r\n") as port:
        assert "does it speak plain http://?" in refusal(spec(f"https://127.0.0.1:{port}"))


@pytest.mark.parametrize("status", [401, 403])
def test_key_is_wanted(serve: Serve, status: int) -> None:
    url = serve({"/v1/models": (status, {"error": {"message": "Unauthorized"}})})
    assert f"HTTP {status}: it wants an API key (Unauthorized); --llmperf-api-key-env NAME" in refusal(spec(url))


def test_key_is_refused_and_not_shown(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_KEY", "sk-secret")
    url = serve({"/v1/models": (401, {"error": "invalid"})})
    message = refusal(spec(url, api_key_env="MY_KEY"))
    assert "the API key was refused (invalid)" in message
    assert "sk-secret" not in message


def test_no_such_route(serve: Serve) -> None:
    assert "HTTP 404: no OpenAI-compatible API here; give the address without /v1" in refusal(spec(serve({})))


def test_redirect(serve: Serve) -> None:
    url = serve({"/v1/models": (307, "")}, {"location": "https://elsewhere/login"})
    assert "redirects to https://elsewhere/login (HTTP 307)" in refusal(spec(url))


@pytest.mark.parametrize("body", ["<html>hello</html>", {"hello": 1}, ["a"]])
def test_answer_of_something_else(serve: Serve, body: Any) -> None:
    assert "no OpenAI-compatible API here" in refusal(spec(serve({"/v1/models": (200, body)})))


def test_server_in_trouble_is_quoted(serve: Serve) -> None:
    url = serve({"/v1/models": (503, {"error": {"message": "Loading\nmodel", "code": 503}})})
    assert refusal(spec(url)).endswith("HTTP 503: Loading model")


@pytest.mark.parametrize(
    "headers", [{}, {"content-type": "text/plain; charset=utf-16"}, {"content-type": "text/plain; charset=no"}]
)
@pytest.mark.parametrize("body", ["[" * 100_000, "x", "ä"])
def test_what_cannot_be_read_is_no_fact_and_no_crash(serve: Serve, body: str, headers: dict[str, str]) -> None:
    url = serve({**models("m", owner="vllm"), "/version": (200, body)}, headers)
    assert connect(spec(url, "vllm"))[1].value("version") in ("unknown", body)
    url = serve({"/v1/models": (200, body)}, headers)
    assert "the answer is not JSON" in refusal(spec(url))


def test_an_answer_that_never_ends_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pytest_llmperf.control.probe._HEALTH_SECONDS", 0.3)
    endless = b"HTTP/1.1 200 OK\r\ncontent-length: 1000\r\n\r\n"
    with (
        tcp(endless, trickle=0.05) as port,
        open_client(Endpoint(f"http://127.0.0.1:{port}", "127.0.0.1", port, False, "m", "openai")) as client,
    ):
        begun = time.monotonic()
        assert unready(client, "/health") == "the answer is not complete within 0.3 s"
        assert time.monotonic() - begun < 10


def test_model_must_be_chosen_among_several(serve: Serve) -> None:
    assert "it serves 2 models; choose one with model = ...: a, b" in refusal(spec(serve(models("a", "b"))))
    assert "it serves no model" in refusal(spec(serve(models())))


def test_model_that_is_not_there(serve: Serve) -> None:
    url = serve(models("a", "b"))
    assert "there is no model 'c'; it serves: a, b" in refusal(spec(url, model="c"))
    assert connect(spec(url, model="b"))[0].model == "b"


def test_other_engine_than_configured(serve: Serve) -> None:
    url = serve(models("a", owner="vllm"))
    assert "engine = 'sglang' is configured, but vLLM answers (engine = 'vllm')" in refusal(spec(url, "sglang"))


@pytest.mark.parametrize(
    ("owner", "engine"), [("vllm", "vllm"), ("sglang", "sglang"), ("llamacpp", "llamacpp"), ("x", "openai")]
)
def test_engine_is_recognised(serve: Serve, owner: str, engine: str) -> None:
    endpoint, identity = connect(spec(serve(models("a", owner=owner))))
    assert endpoint.engine == identity.value("engine") == engine


def test_gateway_path_is_kept_and_facts_may_be_declared(serve: Serve) -> None:
    answers = {f"/gw{path}": answer for path, answer in models("a", owner="vllm").items()}
    answers["/gw/version"] = (200, {"version": "0.33.0"})
    answer = {"choices": [{}], "usage": {"prompt_tokens": 4}, "system_fingerprint": "vllm-0.33.0-ab"}
    answers["/gw/v1/chat/completions"] = (200, answer)
    base = serve(answers)
    endpoint, identity = connect(spec(f"{base}/gw/v1", max_num_seqs=64))
    assert endpoint.base_url == f"{base}/gw"
    assert identity.value("version") == "0.33.0"
    assert identity.input["max_num_seqs"].source == "declared"
    assert identity.value("system_fingerprint") == "vllm-0.33.0-ab"
    assert prompt_tokens(endpoint, "chat", "hello") == 4


def test_calibration_without_usage_is_unknown_and_a_refusal_is_quoted(serve: Serve) -> None:
    base = serve(
        {"/v1/completions": (200, {"choices": [{"text": "x"}]}), "/v1/chat/completions": (422, {"detail": "no"})}
    )
    endpoint = Endpoint(base, "127.0.0.1", int(base.rpartition(":")[2]), False, "m", "openai")
    assert prompt_tokens(endpoint, "completions", "hello") is None
    with pytest.raises(TargetError, match="HTTP 422: no"):
        prompt_tokens(endpoint, "chat", "hello")


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        ("127.0.0.1:8000", "'127.0.0.1:8000' is not the URL of a server; write e.g. 'http://127.0.0.1:8000'"),
        ("ftp://host", "is not the URL of a server"),
        ("http://", "is not the URL of a server"),
        ("http://host:99999", "is not a URL: Port out of range"),
        ("http://host?x=1", "has a query or fragment"),
        ("http://me:secret@host", "holds credentials; keys go into api_key_env"),
        ("http://a..b:80", "impossible host name"),
    ],
)
def test_address_that_is_none(url: str, problem: str) -> None:
    settings = Settings.model_validate({"source": "llmperf.toml"})
    with pytest.raises(ConfigError, match=re.escape(problem)) as caught:
        server_named(None, settings, Overrides(url=url))
    assert caught.value.key == "servers.url.url"
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("url", "base", "port", "tls"),
    [
        ("http://host", "http://host", 80, False),
        ("https://host/", "https://host", 443, True),
        ("http://host:8000/v1", "http://host:8000", 8000, False),
        ("http://host:8000/v1/", "http://host:8000", 8000, False),
        ("http://[::1]:8000/a/v1", "http://[::1]:8000/a", 8000, False),
    ],
)
def test_address_is_normalised(url: str, base: str, port: int, tls: bool) -> None:
    assert base_url(url)[::2] == (base, port)
    assert base_url(url)[3] is tls


@pytest.mark.parametrize(("value", "problem"), [(None, "is not set"), ("", "is empty"), ("a\nb", "no header may hold")])
def test_key_variable_must_hold_a_key(monkeypatch: pytest.MonkeyPatch, value: str | None, problem: str) -> None:
    monkeypatch.delenv("MY_KEY", raising=False)
    if value is not None:
        monkeypatch.setenv("MY_KEY", value)
    with pytest.raises(ConfigError, match=problem) as caught:
        connect(spec("http://127.0.0.1:1", api_key_env="MY_KEY"))
    assert caught.value.key == "api_key_env"


def test_certificate_is_verified_and_ca_file_is_the_way(tmp_path: Path) -> None:
    key, certificate = tmp_path / "key.pem", tmp_path / "cert.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2",
         "-keyout", key, "-out", certificate, "-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1"],
        check=True, capture_output=True,
    )  # fmt: skip
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    body = b'{"data": [{"id": "m"}]}'
    answer = b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\nconnection: close\r\n\r\n%s" % (len(body), body)
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            try:
                with context.wrap_socket(connection, server_side=True) as tls:
                    tls.recv(4096)
                    tls.sendall(answer)
            except OSError:  # the client refused the certificate
                continue

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        url = f"https://127.0.0.1:{listener.getsockname()[1]}"
        message = refusal(spec(url))
        assert "its TLS certificate can't be verified" in message
        assert "ca_file" in message
        endpoint, _ = connect(spec(url, ca_file=certificate))
        assert (endpoint.tls, endpoint.model) == (True, "m")
        with pytest.raises(ConfigError, match="ca_file"):
            connect(spec(url, ca_file=tmp_path / "absent.pem"))
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join()


def test_an_engine_without_a_list_of_models_must_be_told_the_model(serve: Serve) -> None:
    url = serve({"/v2/health/ready": (200, ""), "/v2": (200, {"version": "2.73.0"})})
    endpoint, identity = connect(spec(url, "triton", model="m"))
    assert (endpoint.model, endpoint.engine) == ("m", "triton")
    assert identity.input["version"].value == "2.73.0"
    with pytest.raises(ConfigError, match=r"servers\.s: model: Triton does not list its models; name the model"):
        connect(spec(url, "triton"))
    assert "HTTP 503" in refusal(spec(serve({"/v2/health/ready": (503, "not yet")}), "triton", model="m"))


@pytest.mark.parametrize(
    ("api", "path", "answer", "tokens"),
    [
        ("tgi", "/generate", {"generated_text": "x", "details": {"generated_tokens": 1, "prefill": [{}] * 9}}, 9),
        ("llamacpp", "/completion", {"content": "x", "tokens_predicted": 1, "tokens_evaluated": 9, "stop": True}, 9),
        ("triton", "/v2/models/m/generate", {"text_output": "x"}, None),
        ("ollama-chat", "/api/chat", {"message": {"content": "x"}, "done": True, "prompt_eval_count": 9}, 9),
        ("ollama-generate", "/api/generate", {"response": "x", "done": True, "prompt_eval_count": 9}, 9),
    ],
)
def test_prompt_tokens_in_every_api(serve: Serve, api: Api, path: str, answer: Any, tokens: int | None) -> None:
    def endpoint(url: str) -> Endpoint:
        return Endpoint(url, "127.0.0.1", 1, False, "m", "openai")

    assert prompt_tokens(endpoint(serve({path: (200, answer)})), api, "hello") == tokens
    with pytest.raises(TargetError, match="out of memory"):
        prompt_tokens(endpoint(serve({path: (200, {"error": "out of memory"})})), api, "hello")
    with pytest.raises(TargetError, match="the reply holds n"):
        prompt_tokens(endpoint(serve({path: (200, {"hello": 1})})), api, "hello")
