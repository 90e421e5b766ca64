"""What the embedded engine promises, asked of the real server."""

from __future__ import annotations

import json
import platform
import re
from typing import Any

import pytest

from pytest_llmperf.control.calibrate import prompt_tokens
from pytest_llmperf.control.client import fetch, open_client
from pytest_llmperf.control.identify import read_identity
from pytest_llmperf.engines import ENGINES, tiny_model
from pytest_llmperf.errors import TargetError
from pytest_llmperf.plan import ServerSpec
from pytest_llmperf.records import Api
from pytest_llmperf.samples import StartUp
from pytest_llmperf.server.launch import Launch


def stream(live: Launch, api: Api, tokens: int, **extra: Any) -> tuple[list[str], dict[str, Any]]:
    """The non-empty texts of the chunks, and the usage."""
    prompt = {"messages": [{"role": "user", "content": "tell me"}]} if api == "chat" else {"prompt": "tell me"}
    body = {"model": live.endpoint.model, "max_tokens": tokens, "stream": True, **prompt}
    body |= {"stream_options": {"include_usage": True}, **live.engine.request_extras(live.spec), **extra}
    path = "/v1/chat/completions" if api == "chat" else "/v1/completions"
    texts, usage = [], {}
    with open_client(live.endpoint) as client, client.stream("POST", path, json=body) as response:
        assert response.status_code == 200
        for line in response.iter_lines():
            if not line.startswith("data: ") or line == "data: [DONE]":
                continue
            event = json.loads(line.removeprefix("data: "))
            usage = event.get("usage") or usage
            for choice in event["choices"]:
                texts.append(choice["delta"].get("content") if api == "chat" else choice["text"])
    return [text for text in texts if text], usage


@pytest.mark.parametrize("api", ["chat", "completions"])
@pytest.mark.parametrize(
    "sampling", [{"temperature": 0}, {"temperature": 1, "top_k": 0, "top_p": 1, "min_p": 0, "seed": 7}]
)
def test_every_chunk_is_one_token_of_letters_and_the_length_is_exact(
    embedded: Launch, api: Api, sampling: dict[str, float]
) -> None:
    texts, usage = stream(embedded, api, 300, **sampling)
    assert usage["completion_tokens"] == 300
    assert len(texts) == 300
    assert [text for text in texts if not re.fullmatch(r" ?[A-Za-z]+", text)] == []


def test_length_is_exact_even_where_the_client_does_not_force_it(embedded: Launch) -> None:
    _, usage = stream(embedded, "completions", 200, ignore_eos=False)
    assert usage["completion_tokens"] == 200


def test_greedy_text_is_the_same_every_time(embedded: Launch) -> None:
    first = stream(embedded, "completions", 50, temperature=0, cache_prompt=False)
    assert stream(embedded, "completions", 50, temperature=0, cache_prompt=False) == first


def test_words_cost_the_same_tokens_in_any_place(embedded: Launch) -> None:
    def count(text: str) -> int:
        tokens = prompt_tokens(embedded.endpoint, "completions", text)
        assert tokens is not None
        return tokens

    base = count("the")
    assert count("the " + "people write words together " * 10) == base + 40 + 1  # the trailing space
    assert count("the" + " zymurgy" * 20) - count("the" + " zymurgy" * 10) == 10 * (count("the zymurgy") - base)
    chat = prompt_tokens(embedded.endpoint, "chat", "the")
    assert chat is not None
    assert chat > base


def test_prompt_beyond_the_context_is_refused_with_the_servers_words(embedded: Launch) -> None:
    with pytest.raises(TargetError, match=r"/v1/completions: HTTP 400: .*context size"):
        prompt_tokens(embedded.endpoint, "completions", "word " * 3000)


def test_health_and_metrics_answer(embedded: Launch) -> None:
    with open_client(embedded.endpoint) as client:
        assert fetch(client, "/health").json() == {"status": "ok"}
        assert "llamacpp:tokens_predicted_total" in fetch(client, "/metrics").text


def test_identity_states_inputs_environment_and_consequences(embedded: Launch) -> None:
    identity = embedded.identity
    inputs = {name: (fact.value, fact.source) for name, fact in identity.input.items()}
    assert inputs.pop("version")[0][:3] == "202"
    assert inputs == {
        "engine": ("embedded", "configured"),
        "model": (tiny_model.NAME, "live"),
        "model_digest": (f"sha256:{tiny_model.DIGEST[:32]}", "configured"),
        "quantization": ("f16", "live"),
        "max_num_seqs": ("2", "configured"),
        "max_model_len": ("1024", "configured"),
        "enable_prefix_caching": ("true", "configured"),
        "threads": ("1", "configured"),
        "env.MY_FLAG": ("on", "configured"),
        "env.MY_TOKEN": ("***", "configured"),
    }
    assert (identity.value("gpu"), identity.value("gpu_count")) == ("cpu", "1")
    assert re.fullmatch(r".+, \d+ cores, \d+ GiB", identity.value("host"))
    assert identity.value("system") == f"{platform.system()} {platform.machine()}"
    assert {name: identity.consequence[name].value for name in ("n_ctx", "slots")} == {"n_ctx": "1024", "slots": "2"}
    assert "system_fingerprint" in identity.consequence


def test_default_written_out_is_the_same_identity(embedded: Launch) -> None:
    written = embedded.spec.model_copy(update={"threads": 1, "max_num_seqs": 2})
    model_file, version = tiny_model.path(), embedded.identity.value("version")
    again = read_identity(embedded.endpoint, written, ENGINES["embedded"], model_path=model_file, version=version)
    assert again.digest() == embedded.identity.digest()
    other = embedded.spec.model_copy(update={"threads": 2})
    assert read_identity(embedded.endpoint, other, ENGINES["embedded"]).digest() != again.digest()


def test_running_server_is_recognised_and_read(embedded: Launch, tmp_path_factory: pytest.TempPathFactory) -> None:
    from pytest_llmperf.server.launch import launch

    url = embedded.endpoint.base_url + "/v1/"
    spec = ServerSpec(name="url", engine="openai", url=url)
    with launch(spec, log_dir=tmp_path_factory.mktemp("none")) as live:
        assert (live.endpoint.engine, live.engine.name) == ("llamacpp", "llamacpp")
        assert live.endpoint.base_url == embedded.endpoint.base_url
        assert live.endpoint.model == tiny_model.NAME
        assert (live.pid, live.command, live.log_path, live.start) == (None, (), None, StartUp())
        facts = live.identity.input
        assert (facts["max_num_seqs"].value, facts["max_num_seqs"].source) == ("2", "live")
        assert {name: facts[name].source for name in ("args", "env", "model_digest")} == {
            "args": "unknown", "env": "unknown", "model_digest": "unknown",
        }  # fmt: skip
        # Its address is ours, its machine need not be.
        assert {fact.value for fact in live.identity.environment.values()} == {"unknown"}
        live.check_alive()
    embedded.check_alive()
