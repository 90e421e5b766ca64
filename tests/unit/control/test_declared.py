"""What a running server cannot tell may be declared; what it tells, or was started with, wins and must agree."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from pytest_llmperf.control.host import memory_class
from pytest_llmperf.control.identify import read_identity
from pytest_llmperf.control.target import connect
from pytest_llmperf.engines import ENGINES
from pytest_llmperf.errors import ConfigError
from pytest_llmperf.identity import Fact, Identity
from pytest_llmperf.plan import ServerSpec
from pytest_llmperf.records import Endpoint

VLLM = {
    "/v1/models": (200, {"data": [{"id": "m", "owned_by": "vllm", "max_model_len": 4096}]}),
    "/version": (200, {"version": "0.33.0"}),
    "/metrics": (200, 'vllm:cache_config_info{cache_dtype="fp8",enable_prefix_caching="True"} 1.0\n'),
}


@pytest.fixture
def remote(serve: Callable[..., str]) -> Callable[..., Identity]:
    url = serve(VLLM)

    def identity(declared: dict[str, Any], **fields: Any) -> Identity:
        table = {"name": "s", "engine": "vllm", "url": url, "identity": declared, **fields}
        return connect(ServerSpec.model_validate(table))[1]

    return identity


def test_a_running_server_tells_what_it_can_and_the_rest_is_unknown(remote: Callable[..., Identity]) -> None:
    found = remote({})
    assert {name: (fact.value, fact.source) for name, fact in found.input.items()} == {
        "engine": ("vllm", "live"),
        "version": ("0.33.0", "live"),
        "model": ("m", "live"),
        "max_model_len": ("4096", "live"),
        "enable_prefix_caching": ("true", "live"),
        "kv_cache_dtype": ("fp8", "live"),
        **dict.fromkeys(("model_digest", "quantization", "max_num_seqs", "args", "env"), ("unknown", "unknown")),
        # Told in development mode, or by labels that this page does not have.
        **dict.fromkeys(
            (
                *("gpu_memory_utilization", "block_size", "kv_offloading_size", "enable_chunked_prefill"),
                *("max_num_batched_tokens", "tensor_parallel_size"),
            ),
            ("unknown", "unknown"),
        ),
    }
    assert {name: fact.value for name, fact in found.environment.items()} == {
        "gpu": "unknown", "gpu_count": "unknown", "host": "unknown",
    }  # fmt: skip


def test_a_running_server_that_tells_its_machine_is_believed(serve: Callable[..., str]) -> None:
    info = {"system_env": {"nvidia_gpu_models": "GPU 0: NVIDIA H200", "nvidia_driver_version": "580"}}
    url = serve({**VLLM, "/server_info?config_format=json": (200, info)})
    found = connect(ServerSpec(name="s", engine="vllm", url=url))[1].environment
    assert found["gpu"] == Fact(value="NVIDIA H200", source="live")
    assert (found["driver"].value, found["gpu_count"].value) == ("580", "unknown")
    with pytest.raises(ConfigError, match="'H100' is declared, but the server says 'NVIDIA H200'"):
        connect(ServerSpec(name="s", engine="vllm", url=url, identity={"gpu": "H100"}))


def test_declared_fields_fill_what_is_unknown_and_are_marked(remote: Callable[..., Identity]) -> None:
    found = remote(
        {
            "quantization": "fp8",
            "gpu": "NVIDIA H200",
            "gpu_count": 8,
            "driver": "580",
            "args": "--enforce-eager --tp 2",
            "env.A": True,
            "model_revision": "abc",
            "version": "0.33.0",
            "kv_cache_dtype": "FP8",
        }
    )
    declared = {
        name: fact.value
        for facts in (found.input, found.environment)
        for name, fact in facts.items()
        if fact.source == "declared"
    }
    assert declared == {
        "quantization": "fp8",
        "gpu": "NVIDIA H200",
        "gpu_count": "8",
        "driver": "580",
        "args.--enforce-eager": "set",
        "args.--tp": "2",
        "env.A": "true",
        "model_revision": "abc",
    }
    assert (found.input["version"].source, found.input["kv_cache_dtype"].value) == ("live", "fp8")
    assert not {"args", "env"} & found.input.keys()


def test_a_server_without_flags_and_variables_is_declared_so(remote: Callable[..., Identity]) -> None:
    found = remote({"args": "none", "env": "none"})
    assert [name for name in found.input if name.startswith(("args", "env"))] == []


@pytest.mark.parametrize(
    ("declared", "fields", "problem"),
    [
        ({"version": "0.32.0"}, {}, "servers.s: identity.version: '0.32.0' is declared, but the server says '0.33.0'"),
        ({"kv_cache_dtype": "auto"}, {}, "'auto' is declared, but the server says 'fp8'"),
        ({"quantization": "fp8"}, {"quantization": "awq"}, "'fp8' is declared, but the configuration says 'awq'"),
        ({"env": "A=1"}, {}, "identity.env: 'A=1': write 'none', or env.NAME for each variable"),
        ({"args": "--a 'b"}, {}, 'identity.args: "--a \'b": No closing quotation'),
    ],
)
def test_a_contradiction_is_an_error(
    remote: Callable[..., Identity], declared: dict[str, Any], fields: dict[str, Any], problem: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        remote(declared, **fields)
    assert problem in str(caught.value)


def launched(url: str, given: dict[str, Any], version: str | None = None, **environment: str) -> Identity:
    """The identity of a vLLM that we started, as far as its answers tell."""
    engine = replace(ENGINES["vllm"], command=lambda *_: [])
    spec = ServerSpec.model_validate({"name": "s", "engine": "vllm", **given})
    facts = {name: Fact(value=value, source="live") for name, value in environment.items()}
    endpoint = Endpoint(url, "127.0.0.1", 1, False, "m", "vllm")
    return read_identity(endpoint, spec, engine, version=version, environment=facts)


def test_what_a_launch_set_is_an_input_flag_by_flag_with_secrets_hidden(serve: Callable[..., str]) -> None:
    found = launched(
        serve(VLLM),
        {
            "version": "0.33.0",
            "executable": "/opt/{version}/bin/vllm",
            "quantization": "FP8",
            "extra_args": ("--enforce-eager", "--hf-token", "hf_secret", "--tp=2"),
            "env": {"HF_TOKEN": "hf_secret", "A": "1", "SOURCE": "http://u:pw-secret@h"},
        },
        gpu="NVIDIA H200",
        gpu_count="1",
        driver="580",
    )
    assert {name: fact.value for name, fact in found.input.items() if fact.source == "configured"} == {
        "engine": "vllm",
        "executable": "/opt/{version}/bin/vllm",
        "quantization": "fp8",
        **dict.fromkeys(set(ENGINES["vllm"].parameters) - {"quantization"}, "default"),
        "args.--enforce-eager": "set",
        "args.--hf-token": "***",
        "args.--tp": "2",
        "env.A": "1",
        "env.SOURCE": "http://u:***@h",
        "env.HF_TOKEN": "***",
    }
    assert "secret" not in found.model_dump_json()
    assert {name: found.value(name) for name in ("gpu", "driver")} == {"gpu": "NVIDIA H200", "driver": "580"}
    assert found.environment["host"].source == "live"


def test_a_launch_that_brings_up_another_version_is_an_error(serve: Callable[..., str]) -> None:
    url = serve(VLLM)
    assert launched(url, {"version": "0.33.0"}).value("version") == "0.33.0"
    with pytest.raises(ConfigError, match=r"servers\.s: version: '0\.32\.0' was asked for, .* started is '0\.33\.0'"):
        launched(url, {"version": "0.32.0"})
    built = serve({**VLLM, "/version": (200, {"version": "0.33.0+cu130"})})
    assert launched(built, {"version": "0.33.0"}).value("version") == "0.33.0+cu130"
    silent = serve({"/v1/models": VLLM["/v1/models"]})
    assert launched(silent, {"version": "1"}, version="1").input["version"] == Fact(value="1", source="configured")
    assert launched(silent, {}).value("version") == "unknown"


def test_memory_counts_by_class() -> None:
    gib = 2**30
    sizes = [0.9, 15.5, 16.4, 31.2, 251.7, 2015.0]
    shown = ["1 GiB", "16 GiB", "16 GiB", "32 GiB", "256 GiB", "2048 GiB"]
    assert [memory_class(int(size * gib)) for size in sizes] == shown
    assert memory_class(None) == "unknown memory"
