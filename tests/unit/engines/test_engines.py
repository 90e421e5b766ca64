"""The engine table: commands, parameters, what is read from documents of real servers."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from pytest_llmperf.engines import ENGINES, embedded_server, engine_of, launchable
from pytest_llmperf.engines.engine import check_api, check_parameters
from pytest_llmperf.errors import ConfigError
from pytest_llmperf.plan import ServerSpec

MODELS = {"object": "list", "data": [{"id": "m", "object": "model", "max_model_len": 4096, "root": "/w/m"}]}


def spec(engine: str = "embedded", **fields: object) -> ServerSpec:
    return ServerSpec.model_validate({"name": "s", "engine": engine, **fields})


def test_table_is_keyed_by_name() -> None:
    assert {name: engine.name for name, engine in ENGINES.items()} == {name: name for name in ENGINES}
    named = ("llamacpp", "embedded", "vllm", "sglang", "trtllm", "tgi", "lmdeploy", "transformers", "ollama")
    assert launchable() == named
    assert [name for name, engine in ENGINES.items() if engine.evidence == "run for real"] == [
        "llamacpp", "embedded", "vllm", "transformers",
    ]  # fmt: skip
    assert [name for name, engine in ENGINES.items() if engine.launch_evidence == "run for real"] == [
        "embedded", "vllm",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("engine", "wanted", "found", "same"),
    [
        # build_info of llama.cpp: "b" BUILD "-" COMMIT
        ("llamacpp", "b11434", "b11434-4f3c2a1d", True),
        ("llamacpp", "11434", "b11434-4f3c2a1d", True),
        ("llamacpp", "b11434-4f3c2a1d", "b11434-4f3c2a1d", True),
        ("llamacpp", "b11434-ffffffff", "b11434-4f3c2a1d", False),
        ("llamacpp", "b1143", "b11434-4f3c2a1d", False),
        ("llamacpp", "master", "b11434-4f3c2a1d", False),
        ("vllm", "0.33.0", "0.33.0+cu130", True),
        ("vllm", "v0.33.0", "0.33.0", True),
        ("vllm", "0.33", "0.33.0", True),
        ("vllm", "0.33.0+cu130", "0.33.0+cu130", True),
        ("vllm", "0.33.0+cu130", "0.33.0+cu129", False),
        ("vllm", "0.33.0+cu130", "0.33.0", False),
        ("vllm", "0.33.0", "0.33.0rc2", False),
        ("vllm", "0.33.0", "0.33.1.dev7+gbcc0a3cbe", False),
        ("sglang", "0.5.23", "0.5.23.post1", False),
        ("sglang", "v0.5.23.post1", "0.5.23.post1", True),
        ("trtllm", "1.2.1", "1.2.1", True),
        ("trtllm", "1.3.0rc4", "1.3.0", False),
        ("tgi", "3.3.7", "3.3.7", True),
        ("tgi", "3.3.7", "3.3.7-dev0", False),
        ("ollama", "v0.33.0-rc2", "0.33.0-rc2", True),
        ("triton", "26.09", "2.73.0", False),
        ("embedded", "2026.10.11549", "2026.10.11549", True),
        ("openai", "nightly", "nightly", True),
    ],
)
def test_versions_are_the_same_as_the_engine_writes_them(engine: str, wanted: str, found: str, same: bool) -> None:
    assert ENGINES[engine].same_version(wanted, found) is same


def test_unknown_engine_names_the_nearest() -> None:
    with pytest.raises(ConfigError, match=r"servers\.s: engine: unknown engine 'vlm'; did you mean 'vllm'"):
        engine_of(spec("vlm"))


def test_parameter_that_the_engine_lacks_names_those_it_has() -> None:
    with pytest.raises(
        ConfigError, match=r"servers\.s: threads: vLLM has no such parameter; it has: max_num_seqs, max_mod"
    ):
        check_parameters(ENGINES["vllm"], spec("vllm", threads=2))
    with pytest.raises(ConfigError, match=r"servers\.s: gpus: the embedded engine computes on the CPU"):
        check_parameters(ENGINES["embedded"], spec(gpus=(0,)))
    check_parameters(ENGINES["embedded"], spec(threads=2, max_num_seqs=1))


def test_embedded_command_passes_every_parameter() -> None:
    command_of = ENGINES["embedded"].command
    assert command_of is not None
    command = command_of(
        spec(
            max_num_seqs=4, max_model_len=256, enable_prefix_caching=False, threads=3, extra_args=("--cache-ram", "8")
        ),
        4711,
        "/m/x.gguf",
    )
    assert command[3:] == [
        *("--model", "/m/x.gguf", "--alias", "x", "--port", "4711", "--max-num-seqs", "4", "--max-model-len", "256"),
        *("--threads", "3", "--prefix-caching", "false", "--cache-ram", "8"),
    ]


def test_missing_model_file_names_key_and_path(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"servers\.s: model: .*none\.gguf.* is no file"):
        ENGINES["embedded"].find_model(spec(model=str(tmp_path / "none.gguf")))


def test_request_extras_force_the_length_where_the_engine_can_and_stay_empty_where_unknown() -> None:
    extras = {name: engine.request_extras(spec(name)) for name, engine in ENGINES.items()}
    assert extras == {
        "embedded": {"ignore_eos": True, "cache_prompt": True, "timings_per_token": True},
        "llamacpp": {"ignore_eos": True, "cache_prompt": True, "timings_per_token": True},
        "vllm": {"ignore_eos": True},
        "sglang": {"ignore_eos": True},
        "trtllm": {"ignore_eos": True},
        "lmdeploy": {"ignore_eos": True},
        "transformers": {},
        "tgi": {},
        "ollama": {},
        "triton": {},
        "openai": {},
    }
    off = ENGINES["embedded"].request_extras(spec(enable_prefix_caching=False))
    assert off == {"ignore_eos": True, "cache_prompt": False, "timings_per_token": True}


def test_vllm_facts_from_version_models_and_cache_info() -> None:
    metrics = (
        "# TYPE vllm:cache_config_info gauge\n"
        'vllm:cache_config_info{block_size="16",cache_dtype="auto",enable_prefix_caching="True",engine="0",'
        'num_gpu_blocks="27777",sliding_window="None"} 1.0\n'
    )
    facts = ENGINES["vllm"].read_facts(
        {"/v1/models": MODELS, "/version": {"version": "0.33.0"}, "/metrics": metrics}, "m"
    )
    assert facts.version == "0.33.0"
    assert facts.parameters == {
        "max_model_len": "4096",
        "enable_prefix_caching": "true",
        "kv_cache_dtype": "auto",
        "block_size": "16",
    }
    assert facts.consequence["num_gpu_blocks"] == "27777"
    assert "sliding_window" not in facts.consequence


def test_vllm_in_development_mode_tells_numbers_and_machine() -> None:
    info = {
        "vllm_config": {
            "model_config": {"quantization": None, "dtype": "torch.bfloat16"},
            "scheduler_config": {"max_num_seqs": 64, "max_num_batched_tokens": 8192},
            "parallel_config": {"tensor_parallel_size": 2},
        },
        "system_env": {
            "torch_version": "2.11.0",
            "nvidia_driver_version": "580.95.05",
            "nvidia_gpu_models": "GPU 0: NVIDIA H200\nGPU 1: NVIDIA H200 (UUID: GPU-1)",
        },
    }
    path = "/server_info?config_format=json"
    facts = ENGINES["vllm"].read_facts({"/v1/models": MODELS, path: info}, "m")
    assert (facts.quantization, facts.parameters["max_num_seqs"]) == ("bf16", "64")
    assert facts.environment == {"gpu": "NVIDIA H200", "driver": "580.95.05"}
    told = {name: facts.consequence[name] for name in ("dtype", "max_num_batched_tokens", "tensor_parallel_size")}
    assert told == {"dtype": "bfloat16", "max_num_batched_tokens": "8192", "tensor_parallel_size": "2"}
    info["vllm_config"] = {"model_config": {"quantization": "FP8"}}
    assert ENGINES["vllm"].read_facts({path: info}, "m").quantization == "fp8"
    info["vllm_config"] = {"model_config": {"quantization": 3}}
    assert ENGINES["vllm"].read_facts({path: info}, "m").quantization is None


def test_sglang_facts_from_server_info() -> None:
    info = {"version": "0.5.23", "quantization": "FP8", "max_running_requests": 64, "disable_radix_cache": True}
    facts = ENGINES["sglang"].read_facts({"/v1/models": MODELS, "/server_info": info}, "m")
    assert (facts.version, facts.quantization) == ("0.5.23", "fp8")
    assert facts.parameters == {"max_num_seqs": "64", "max_model_len": "4096", "enable_prefix_caching": "false"}


def test_sglang_tells_its_hierarchical_cache_in_gigabytes_of_one_rank() -> None:
    def told(**info: object) -> str | None:
        return ENGINES["sglang"].read_facts({"/server_info": info}, "m").parameters.get("kv_offloading_size")

    assert told(enable_hierarchical_cache=True, hicache_size=17, tp_size=4) == "63.3"  # 68e9 / 2**30
    assert told(enable_hierarchical_cache=True, hicache_size=0, tp_size=4) is None
    assert told(enable_hierarchical_cache=False, hicache_size=17) is None


@pytest.mark.parametrize("odd", [None, [], "text", 3, {"data": None}, {"data": [None, 1]}, {"data": [{"id": "m"}]}])
def test_odd_documents_yield_no_facts_and_no_error(odd: object) -> None:
    for engine in ENGINES.values():
        facts = engine.read_facts(dict.fromkeys(("/v1/models", *engine.info_paths), odd), "m")
        assert (facts.version, facts.quantization, dict(facts.parameters)) == (None, None, {})


def run_server(*arguments: str, python: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, *python, embedded_server.__file__, *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=30, env=dict(os.environ), check=False)


def test_child_says_how_to_install_the_engine() -> None:
    done = run_server("--model", "x", "--port", "1", python=("-I", "-S"))  # -S: no site-packages, no xllamacpp
    assert done.returncode == embedded_server.NO_PACKAGE
    assert done.stderr.count("\n") == 1
    assert 'pip install "pytest-llmperf[embedded]"' in done.stderr


def test_child_refuses_what_is_no_model(tmp_path: Path) -> None:
    absent = run_server("--model", str(tmp_path / "absent.gguf"), "--port", "1")
    assert (absent.returncode, absent.stderr.count("\n")) == (embedded_server.BAD_MODEL, 1)
    assert "No such file" in absent.stderr
    (tmp_path / "text.gguf").write_text("hello")
    other = run_server("--model", str(tmp_path / "text.gguf"), "--port", "1")
    assert (other.returncode, other.stderr.count("\n")) == (embedded_server.BAD_MODEL, 1)
    assert "not a GGUF file" in other.stderr
    (tmp_path / "broken.gguf").write_bytes(b"GGUF" + bytes(100))
    broken = run_server("--model", str(tmp_path / "broken.gguf"), "--port", "0")
    assert broken.returncode == embedded_server.BAD_MODEL
    assert f"embedded engine: llama.cpp refused {tmp_path / 'broken.gguf'}" in broken.stderr


def test_child_wants_avx2_on_x86_only() -> None:
    suffices = embedded_server._cpu_suffices  # noqa: SLF001 - no machine without AVX2 at hand
    assert not suffices("x86_64", frozenset({"sse4_2", "avx"}))
    assert suffices("x86_64", frozenset({"avx", "avx2"}))
    assert suffices("x86_64", None)
    assert suffices("arm64", frozenset())


def test_facts_of_engines_with_apis_of_their_own() -> None:
    info = {"version": "3.3.7", "max_total_tokens": 4096, "max_concurrent_requests": 128, "model_id": "org/m"}
    tgi = ENGINES["tgi"].read_facts({"/info": info}, "m")
    assert (tgi.version, tgi.parameters) == ("3.3.7", {"max_model_len": "4096"})
    assert tgi.consequence["max_concurrent_requests"] == "128"
    tags = {"models": [{"name": "m:1b", "digest": "ab12", "details": {"quantization_level": "Q4_K_M"}}]}
    ollama = ENGINES["ollama"].read_facts({"/api/version": {"version": "0.33.0"}, "/api/tags": tags}, "m:1b")
    assert (ollama.version, ollama.quantization) == ("0.33.0", "q4_k_m")
    assert ollama.consequence == {"model_digest": "ab12"}
    assert ENGINES["triton"].read_facts({"/v2": {"version": "2.73.0"}}, "m").version == "2.73.0"
    for name in ("tgi", "ollama", "triton"):
        assert ENGINES[name].read_facts({"/info": [], "/v2": "x", "/api/tags": {"models": 3}}, "m").version is None


def test_an_api_that_the_engine_does_not_speak_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"s: api: vLLM does not speak 'tgi'; it speaks: chat, completions"):
        check_api(ENGINES["vllm"], "tgi", "s")
    check_api(ENGINES["openai"], "tgi", "s")
    check_api(ENGINES["llamacpp"], "llamacpp", "s")
