"""Which engine answers, and what the model's own folder adds to its identity."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pytest_llmperf.control.checkpoint import checkpoint_facts
from pytest_llmperf.control.client import open_client
from pytest_llmperf.control.identify import read_identity
from pytest_llmperf.control.probe import launched_model
from pytest_llmperf.control.target import connect
from pytest_llmperf.engines import ENGINES
from pytest_llmperf.errors import ConfigError, TargetError
from pytest_llmperf.identity import Identity
from pytest_llmperf.plan import ServerSpec
from pytest_llmperf.records import Endpoint

Serve = Callable[..., str]


def listed(owner: str, **fields: Any) -> dict[str, tuple[int, Any]]:
    return {"/v1/models": (200, {"object": "list", "data": [{"id": "m", "owned_by": owner, **fields}]})}


def spec(url: str, engine: str = "openai", **fields: Any) -> ServerSpec:
    return ServerSpec.model_validate({"name": "s", "engine": engine, "url": url, **fields})


@pytest.mark.parametrize(
    ("answers", "engine"),
    [
        (listed("vllm"), "vllm"),
        (listed("sglang"), "sglang"),
        (listed("tensorrt_llm") | {"/version": (200, {"version": "1.2.1"})}, "trtllm"),
        (listed("lmdeploy"), "lmdeploy"),
        (listed("llamacpp"), "llamacpp"),
        (listed("org") | {"/props": (200, {"total_slots": 4})}, "llamacpp"),
        (listed("org") | {"/info": (200, {"router": "text-generation-router", "version": "3.3.7"})}, "tgi"),
        (listed("library") | {"/api/version": (200, {"version": "0.33.0"})}, "ollama"),
        (listed("org") | {"/v2": (200, {"name": "triton", "version": "2.73.0", "extensions": []})}, "triton"),
        # Others speak the protocol of /v2 too.
        (listed("org") | {"/v2": (200, {"name": "mlserver", "version": "1.7.0", "extensions": []})}, "openai"),
        (listed("org") | {"/v2": (200, {"version": "2.73.0"})}, "openai"),
        (
            listed("org") | {"/api/version": (200, {"version": "0"}), "/model_info": (200, {"model_path": "/w"})},
            "sglang",
        ),
        (
            listed("org") | {"/info": (200, "router"), "/props": (200, ["total_slots"]), "/model_info": (500, "")},
            "openai",
        ),
    ],
)
def test_a_running_server_is_recognised(serve: Serve, answers: dict[str, Any], engine: str) -> None:
    endpoint, identity = connect(spec(serve(answers)))
    assert endpoint.engine == engine
    assert identity.input["engine"].source == ("declared" if engine == "openai" else "live")
    assert identity.value("engine_evidence") == (
        "run for real" if engine in ("vllm", "llamacpp") else "from documentation"
    )


def test_triton_is_recognised_though_it_lists_no_models(serve: Serve) -> None:
    url = serve({"/v2": (200, {"name": "triton", "version": "2.73.0"}), "/v2/health/ready": (200, "")})
    endpoint, identity = connect(spec(url, model="ensemble"))
    assert (endpoint.engine, endpoint.model) == ("triton", "ensemble")
    assert identity.value("version") == "2.73.0"
    with pytest.raises(ConfigError, match=r"servers\.s: model: Triton does not list its models; name the model"):
        connect(spec(url))
    with pytest.raises(TargetError, match="no OpenAI-compatible API here"):
        connect(spec(serve({"/v2": (200, {"name": "mlserver"})}), model="m"))
    with pytest.raises(TargetError, match="no OpenAI-compatible API here"):
        connect(spec(url, "vllm", model="m"))


def llama_server(serve: Serve, **fields: Any) -> Identity:
    url = serve(listed("llamacpp") | {"/props": (200, {"total_slots": 4, "build_info": "b11434-4f3c2a1d"})})
    host, port = url.removeprefix("http://").split(":")
    endpoint = Endpoint(url, host, int(port), False, "m", "llamacpp", {})
    written = ServerSpec.model_validate({"name": "s", "engine": "llamacpp", **fields})
    return read_identity(endpoint, written, ENGINES["llamacpp"])


def test_a_pinned_build_of_llama_cpp_is_that_build_whatever_its_commit(serve: Serve) -> None:
    pinned = {"executable": "/opt/{version}/llama-server", "model": "m.gguf"}
    assert llama_server(serve, version="b11434", **pinned).value("version") == "b11434-4f3c2a1d"
    with pytest.raises(
        ConfigError, match=r"version: 'b11435' was asked for, but what was started is 'b11434-4f3c2a1d'"
    ):
        llama_server(serve, version="b11435", **pinned)


def test_evidence_is_that_of_the_way_in_which_the_server_is_used(serve: Serve) -> None:
    launched = llama_server(serve, model="m.gguf")
    assert launched.value("engine_evidence") == "from documentation"
    assert llama_server(serve, url="http://x").value("engine_evidence") == "run for real"
    own = {"launcher": "command", "start": ["llama-server", "--port", "{port}"], "ready_url": "http://127.0.0.1:{port}"}
    assert llama_server(serve, **own).value("engine_evidence") == "run for real", "the command line is the user's"


def test_the_version_of_trtllm_and_the_configuration_of_lmdeploy_are_read(serve: Serve) -> None:
    _, told = connect(spec(serve(listed("tensorrt_llm") | {"/version": (200, {"version": "1.2.1"})})))
    assert told.value("version") == "1.2.1"
    # LMDeploy 0.18.0 metrics/loggers.py: every field of the engine's configuration is a label
    page = (
        "# TYPE lmdeploy:backend_config_info gauge\n"
        'lmdeploy:backend_config_info{block_size="64",cache_max_entry_count="0.8",dtype="auto",'
        'enable_prefix_caching="False",max_batch_size="128",max_prefill_token_num="8192",quant_policy="0",'
        'session_len="None",tp="1"} 1.0\n'
    )
    _, told = connect(spec(serve(listed("lmdeploy") | {"/metrics": (200, page)})))
    known = ("max_num_seqs", "enable_prefix_caching", "gpu_memory_utilization", "tensor_parallel_size", "version")
    assert [told.value(name) for name in known] == ["128", "false", "0.8", "1", "unknown"]


def test_a_real_page_of_vllm_tells_what_it_can(serve: Serve) -> None:
    page = (Path(__file__).parents[2] / "fixtures" / "engines" / "vllm-0.26.0-load.prom").read_text()
    answers = {"/metrics": (200, page), "/version": (200, {"version": "0.26.0"})}
    _, told = connect(spec(serve(listed("vllm", max_model_len=4096, root="/models/llama-8b") | answers)))
    known = {
        "version": "0.26.0",
        "max_model_len": "4096",
        "block_size": "16",
        "gpu_memory_utilization": "0.6",
        "kv_offloading_size": "0",
        "enable_prefix_caching": "false",
        "kv_cache_dtype": "auto",
        "model_root": "/models/llama-8b",
        "kv_cache_size_tokens": "553712",
    }
    assert {name: told.value(name) for name in known} == known
    assert "swap_space" not in told.input, "this version has none"
    assert {name for name, fact in told.input.items() if fact.value == "unknown"} == {
        *("model_digest", "args", "env", "quantization", "max_num_seqs", "tensor_parallel_size"),
        *("enable_chunked_prefill", "max_num_batched_tokens"),
    }


def config(folder: Path, **fields: Any) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(fields))
    return folder


@pytest.mark.parametrize(
    ("fields", "facts"),
    [
        ({"torch_dtype": "bfloat16"}, {"quantization": "bf16"}),
        ({"dtype": "float16", "quantization_config": {"quant_method": "AWQ", "bits": 4}}, {"quantization": "awq"}),
        ({"text_config": {"quantization_config": {"quant_method": "fp8"}}}, {"quantization": "fp8"}),
        ({"torch_dtype": "bfloat16", "num_local_experts": 8}, {"quantization": "bf16", "experts": "8"}),
        ({"n_routed_experts": 256}, {"experts": "256"}),
        ({"num_experts": 1, "quantization_config": [], "torch_dtype": 3}, {}),
    ],
)
def test_what_a_checkpoint_tells(tmp_path: Path, fields: dict[str, Any], facts: dict[str, str]) -> None:
    assert checkpoint_facts(config(tmp_path / "m", **fields)) == facts


def test_a_folder_without_a_readable_config_tells_nothing(tmp_path: Path) -> None:
    assert checkpoint_facts(tmp_path / "none") == {}
    (tmp_path / "config.json").write_text("{")
    assert checkpoint_facts(tmp_path) == {}


def test_quantization_that_the_server_does_not_tell_is_the_checkpoints(serve: Serve, tmp_path: Path) -> None:
    root = config(tmp_path / "m", quantization_config={"quant_method": "gptq"}, num_experts=64)
    _, told = connect(spec(serve(listed("vllm", root=str(root)))))
    assert [told.value(name) for name in ("quantization", "quantization_from", "experts")] == [
        "gptq",
        "config.json of the model",
        "64",
    ]
    _, told = connect(spec(serve(listed("vllm", root="org/m"))))
    assert told.value("quantization") == "unknown"


def test_what_was_launched_is_asked_for_by_the_name_that_it_has(serve: Serve) -> None:
    def name(engine: str, *names: str, model: str) -> str:
        url = serve({"/v1/models": (200, {"data": [{"id": each} for each in names]})} if names else {})
        endpoint = Endpoint(url, "127.0.0.1", 1, False, "", engine)
        with open_client(endpoint) as client:
            return launched_model(client, endpoint, ENGINES[engine], model)[1]

    assert name("vllm", "served", model="/w/m") == "served"
    assert name("ollama", "a:1b", "b:1b", model="b:1b") == "b:1b"
    assert name("transformers", model="/w/m") == "/w/m"  # its list is that of the hub's cache
    with pytest.raises(TargetError, match=r"there is no model 'c'; it serves: a, b"):
        name("vllm", "a", "b", model="c")
