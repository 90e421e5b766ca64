"""What is run for each engine and version: whole commands and variables, as the engines document their flags.

vLLM: ``engine/arg_utils.py`` of 0.33.0, history from its wheels since 0.6.6; SGLang 0.5.23 ``arg_groups``;
TensorRT-LLM 1.2 ``commands/serve.py`` and ``llmapi/llm_args.py``, 0.18.2 ``commands/trtllm-serve.html``; TGI 3.3.7
``launcher.md``; llama.cpp b11434 ``README.md``; transformers 5.23.0 ``cli/serve.py``; LMDeploy 0.18.0 ``cli/utils.py``;
Ollama 0.33 ``envconfig/config.go``.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from pytest_llmperf.engines import ENGINES, engine_of
from pytest_llmperf.engines.engine import check_parameters
from pytest_llmperf.engines.parameters import named_words
from pytest_llmperf.errors import ConfigError, InfraError
from pytest_llmperf.plan import ServerSpec


def spec(engine: str, **fields: Any) -> ServerSpec:
    return ServerSpec.model_validate({"name": "s", "engine": engine, **fields})


def command(engine: str, **fields: Any) -> list[str]:
    made = ENGINES[engine].command
    assert made is not None
    return made(spec(engine, **fields), 4711, "/w/m")


def environment(engine: str, **fields: Any) -> dict[str, str]:
    return ENGINES[engine].environment(spec(engine, **fields), 4711)


ALL = {
    "max_num_seqs": 8,
    "max_model_len": 4096,
    "gpu_memory_utilization": 0.6,
    "block_size": 16,
    "kv_offloading_size": 4,
    "enable_prefix_caching": False,
    "enable_chunked_prefill": True,
    "max_num_batched_tokens": 2048,
    "tensor_parallel_size": 2,
    "quantization": "fp8",
    "kv_cache_dtype": "fp8_e5m2",
}
HERE = ("--host", "127.0.0.1", "--port", "4711")


def some(*left_out: str) -> dict[str, Any]:
    return {name: value for name, value in ALL.items() if name not in left_out}


def test_vllm_with_every_parameter() -> None:
    assert command("vllm", version="0.26.0", **ALL, extra_args=("--load-format", "dummy")) == [
        *(
            "vllm",
            "serve",
            "/w/m",
            *HERE,
            "--seed",
            "0",
            "--generation-config",
            "vllm",
            "--enable-prompt-tokens-details",
        ),
        *("--max-num-seqs", "8", "--max-model-len", "4096", "--gpu-memory-utilization", "0.6", "--block-size", "16"),
        *("--kv-offloading-size", "4.0", "--no-enable-prefix-caching", "--enable-chunked-prefill"),
        *("--max-num-batched-tokens", "2048", "--tensor-parallel-size", "2", "--quantization", "fp8"),
        *("--kv-cache-dtype", "fp8_e5m2", "--load-format", "dummy"),
    ]


def test_vllm_before_0_8_knows_no_generation_config_of_its_own_and_swaps() -> None:
    assert command("vllm", version="0.7.3", swap_space=4, enable_prefix_caching=True, enable_chunked_prefill=False) == [
        *("vllm", "serve", "/w/m", *HERE, "--seed", "0", "--enable-prompt-tokens-details"),
        *("--swap-space", "4.0", "--enable-prefix-caching", "--enable-chunked-prefill=False"),
    ]


@pytest.mark.parametrize(
    ("version", "on", "off"),
    [
        # 0.6.6.post1 to 0.8.4 read a word after it (StoreBoolean), 0.8.5 has --no-… (BooleanOptionalAction).
        *((old, "--enable-chunked-prefill", "--enable-chunked-prefill=False") for old in ("0.6.6.post1", "v0.8.4")),
        *((new, "--enable-chunked-prefill", "--no-enable-chunked-prefill") for new in ("0.8.5", "0.33.0+cu130", None)),
    ],
)
def test_vllm_switches_chunked_prefill_off_as_its_version_reads_it(version: str | None, on: str, off: str) -> None:
    fields = {} if version is None else {"version": version}
    assert command("vllm", **fields, enable_chunked_prefill=True)[-1] == on
    assert command("vllm", **fields, enable_chunked_prefill=False, enable_prefix_caching=False)[-2:] == [
        *("--no-enable-prefix-caching", off)
    ]


@pytest.mark.parametrize("engine", ["vllm", "sglang", "tgi", "lmdeploy", "transformers"])
@pytest.mark.parametrize(("named", "dtype"), [("bf16", "bfloat16"), ("FP16", "float16"), ("float32", "float32")])
def test_weights_that_are_not_quantized_have_a_data_type(engine: str, named: str, dtype: str) -> None:
    made = command(engine, quantization=named)
    assert made[made.index("--dtype") + 1] == dtype
    assert not {"--quantization", "--quantize", "--model-format"} & {*made}
    assert "--dtype" not in command(engine, quantization="fp8")


def test_an_offloading_of_nothing_is_none() -> None:
    assert "--kv-offloading-size" not in command("vllm", kv_offloading_size=0)
    assert "--enable-hierarchical-cache" not in command("sglang", kv_offloading_size=0)


@pytest.mark.parametrize(
    ("gib", "ranks", "gigabytes"),
    # 1 GiB is 1.073741824 GB.
    [(4, 1, "4"), (1, None, "1"), (10, 1, "11"), (64, 1, "69"), (64, 4, "17"), (4, 2, "2")],
)
def test_sglang_takes_whole_gigabytes_for_each_rank(gib: float, ranks: int | None, gigabytes: str) -> None:
    fields = {} if ranks is None else {"tensor_parallel_size": ranks}
    made = command("sglang", kv_offloading_size=gib, **fields)
    assert made[made.index("--hicache-size") + 1] == gigabytes
    int(gigabytes)  # what its parser does


@pytest.mark.parametrize(
    ("gib", "ranks", "near"),
    [(0.3, 1, "write 0.93$"), (1.4, 1, "write 0.93 or 1.86"), (4, 3, "write 2.79 or 5.59")],
)
def test_what_sglang_cannot_be_told_is_an_error_with_sizes_that_can(gib: float, ranks: int, near: str) -> None:
    with pytest.raises(ConfigError, match=f"servers.s: kv_offloading_size: SGLang takes whole GB .*: {near}"):
        command("sglang", kv_offloading_size=gib, tensor_parallel_size=ranks)


def test_sglang_is_not_made_to_generate_by_who_asks_whether_it_is_ready() -> None:
    assert environment("sglang") == {"SGLANG_ENABLE_HEALTH_ENDPOINT_GENERATION": "0"}
    assert ENGINES["sglang"].ready_path == "/health"


@pytest.mark.parametrize(
    ("engine", "fields", "share"),
    [
        ("vllm", {}, 0.92),
        ("vllm", {"version": "0.20.0"}, 0.92),
        ("vllm", {"version": "0.19.1"}, 0.9),
        ("vllm", {"gpu_memory_utilization": 0.5}, 0.5),
        # Theirs is a share of the memory that they find free.
        *((name, {"gpu_memory_utilization": 0.9}, None) for name in ("sglang", "trtllm", "lmdeploy")),
        *((name, {}, None) for name in ("sglang", "trtllm", "lmdeploy", "tgi", "llamacpp", "ollama", "openai")),
        ("tgi", {"gpu_memory_utilization": 0.8}, 0.8),
        ("transformers", {}, 0.5),
        ("transformers", {"gpu_memory_utilization": 0.8}, 0.8),
    ],
)
def test_how_much_of_a_gpu_must_be_free(engine: str, fields: dict[str, Any], share: float | None) -> None:
    assert ENGINES[engine].memory_share(spec(engine, **fields)) == share


def test_vllm_is_in_development_mode_only_where_nobody_else_reaches_it() -> None:
    assert environment("vllm") == {"VLLM_NO_USAGE_STATS": "1", "VLLM_SERVER_DEV_MODE": "1"}
    assert environment("vllm", extra_args=("--host", "localhost"))["VLLM_SERVER_DEV_MODE"] == "1"
    for reached in (("--host", "0.0.0.0"), ("--host=::",)):
        assert "VLLM_SERVER_DEV_MODE" not in environment("vllm", extra_args=reached)


def test_sglang_says_off_in_its_own_ways() -> None:
    assert command("sglang", **some("max_num_batched_tokens"), extra_args=("--load-format", "dummy")) == [
        *(sys.executable, "-m", "sglang.launch_server", "--model-path", "/w/m", *HERE, "--random-seed", "0"),
        *("--enable-metrics", "--enable-cache-report", "--max-running-requests", "8", "--context-length", "4096"),
        *("--mem-fraction-static", "0.6", "--page-size", "16", "--enable-hierarchical-cache", "--hicache-size", "2"),
        *("--disable-radix-cache", "--tp-size", "2", "--quantization", "fp8", "--kv-cache-dtype", "fp8_e5m2"),
        *("--load-format", "dummy"),
    ]
    assert command("sglang", enable_prefix_caching=True, enable_chunked_prefill=False)[-2:] == [
        "--chunked-prefill-size",
        "-1",
    ]
    assert command("sglang", max_num_batched_tokens=2048)[-2:] == ["--chunked-prefill-size", "2048"]
    with pytest.raises(ConfigError, match=r"max_num_batched_tokens: sets --chunked-prefill-size, which enable_chunked"):
        command("sglang", max_num_batched_tokens=2048, enable_chunked_prefill=False)


def test_trtllm_takes_part_of_it_from_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pytest_llmperf.engines.trtllm.cache_dir", lambda: tmp_path)
    made = command("trtllm", **some("kv_offloading_size", "quantization"))
    assert made[:7] == ["trtllm-serve", "/w/m", *HERE, "--extra_llm_api_options"]
    assert made[8:] == [
        *("--max_batch_size", "8", "--max_seq_len", "4096", "--kv_cache_free_gpu_memory_fraction", "0.6"),
        *("--max_num_tokens", "2048", "--tp_size", "2"),
    ]
    assert json.loads(Path(made[7]).read_text()) == {
        "return_perf_metrics": True,
        "enable_iter_perf_stats": True,
        "enable_chunked_prefill": True,
        "kv_cache_config": {"tokens_per_block": 16, "enable_block_reuse": False, "dtype": "fp8_e5m2"},
    }
    off = command("trtllm", version="1.0.0", enable_chunked_prefill=False)
    assert off[8:] == []
    assert json.loads(Path(off[7]).read_text()) == {"enable_iter_perf_stats": True, "enable_chunked_prefill": False}
    assert command("trtllm", extra_args=("--config", "mine.yaml"))[6:] == ["--config", "mine.yaml"]
    with pytest.raises(
        ConfigError, match=r"block_size: TensorRT-LLM takes it from the file of --config: write kv_cache"
    ):
        command("trtllm", block_size=32, extra_args=("--config", "mine.yaml"))


def test_tgi_takes_prefix_caching_from_a_variable() -> None:
    given = some("block_size", "kv_offloading_size", "enable_chunked_prefill")
    assert command("tgi", **given) == [
        *("text-generation-launcher", "--model-id", "/w/m", "--hostname", "127.0.0.1", "--port", "4711"),
        *("--max-batch-size", "8", "--max-total-tokens", "4096", "--cuda-memory-fraction", "0.6"),
        *("--max-batch-prefill-tokens", "2048", "--num-shard", "2", "--quantize", "fp8"),
        *("--kv-cache-dtype", "fp8_e5m2"),
    ]
    assert environment("tgi", **given) == {"PREFIX_CACHING": "0"}
    assert environment("tgi", enable_prefix_caching=True) == {"PREFIX_CACHING": "1"}
    assert environment("tgi") == {}


def test_llama_server_divides_its_context_among_its_slots() -> None:
    assert command("llamacpp", max_num_seqs=4, max_model_len=1024, threads=2, enable_prefix_caching=False) == [
        *("llama-server", "--model", "/w/m", "--alias", "m", *HERE, "--metrics", "--parallel", "4"),
        *("--ctx-size", "4096", "--no-cache-prompt", "--threads", "2"),
    ]
    assert command("llamacpp", max_model_len=1024, kv_cache_dtype="q8_0", max_num_batched_tokens=512)[9:] == [
        *("--metrics", "--ctx-size", "1024", "--batch-size", "512", "--cache-type-k", "q8_0", "--cache-type-v", "q8_0"),
    ]


def test_transformers_serve() -> None:
    given = {"gpu_memory_utilization": 0.5, "block_size": 32, "max_num_batched_tokens": 512, "quantization": "bnb-4bit"}
    assert command("transformers", **given) == [
        *("transformers", "serve", "/w/m", *HERE, "--continuous-batching", "--default-seed", "0"),
        *("--cb-max-memory-percent", "0.5", "--cb-block-size", "32", "--cb-max-batch-tokens", "512"),
        *("--quantization", "bnb-4bit"),
    ]
    # Without a cap it takes more than half of a host's memory.
    assert command("transformers")[-2:] == ["--cb-max-memory-percent", "0.5"]
    assert ENGINES["transformers"].defaults == {"gpu_memory_utilization": "0.5"}
    own = ("--cb-max-memory-percent", "0.2")
    assert command("transformers", extra_args=own).count("--cb-max-memory-percent") == 1


def test_lmdeploy_has_prefix_caching_off_by_itself() -> None:
    given = some("kv_offloading_size", "enable_chunked_prefill")
    assert command("lmdeploy", **given) == [
        *("lmdeploy", "serve", "api_server", "/w/m", "--server-name", "127.0.0.1", "--server-port", "4711"),
        *("--max-batch-size", "8", "--session-len", "4096", "--cache-max-entry-count", "0.6"),
        *("--cache-block-seq-len", "16", "--max-prefill-token-num", "2048", "--tp", "2", "--model-format", "fp8"),
        *("--quant-policy", "fp8_e5m2"),
    ]
    assert command("lmdeploy", enable_prefix_caching=True)[-1] == "--enable-prefix-caching"


def test_ollama_is_told_everything_by_variables() -> None:
    given = {"max_num_seqs": 4, "max_model_len": 8192, "kv_cache_dtype": "q8_0"}
    assert command("ollama", **given) == ["ollama", "serve"]
    assert environment("ollama", **given) == {
        "OLLAMA_HOST": "127.0.0.1:4711",
        "OLLAMA_KEEP_ALIVE": "-1",
        "OLLAMA_NUM_PARALLEL": "4",
        "OLLAMA_CONTEXT_LENGTH": "8192",
        "OLLAMA_KV_CACHE_TYPE": "q8_0",
    }


@pytest.mark.parametrize(
    ("engine", "installed", "fields", "problem"),
    [
        ("vllm", "0.18.0", {"swap_space": 4}, "vLLM 0.18.0 has no such parameter: it is gone since 0.18; use kv_offl"),
        ("vllm", "newest", {"swap_space": 4}, "vLLM has no such parameter: it is gone since 0.18; use kv_offloading_s"),
        ("vllm", "0.11.0", {"kv_offloading_size": 4}, "vLLM 0.11.0 has no such parameter: it came with 0.11.1"),
        ("vllm", "0.11.1", {"kv_offloading_size": 4}, None),
        ("trtllm", "1.1.0", {"block_size": 64}, "TensorRT-LLM 1.1.0 has no such parameter: it came with 1.2"),
        ("trtllm", "1.2.1", {"block_size": 64, "kv_cache_dtype": "fp8"}, None),
        ("vllm", "0.17.1", {"swap_space": 4}, None),
        ("vllm", "0.6.6.post1", {"swap_space": 4}, None),
        ("vllm", "0.32.0+cpu", {"kv_offloading_size": 4}, None),
        ("vllm", "newest", {"threads": 4}, "vLLM has no such parameter; it has: max_num_seqs"),
        ("sglang", "0.5.23", {"swap_space": 4}, "SGLang has no such parameter; it has:"),
        ("llamacpp", "b11434", {"gpu_memory_utilization": 0.5}, "llama.cpp has no such parameter"),
        ("ollama", "", {"enable_prefix_caching": False}, "Ollama has no such parameter"),
        ("transformers", "", {"max_num_seqs": 4}, "transformers serve has no such parameter"),
        ("vllm", "", {"swap_space": 4}, None),
        ("vllm", "", {"swap_space": 4, "version": "0.20.0"}, "vLLM 0.20.0 has no such parameter"),
    ],
)
def test_a_parameter_that_engine_or_version_lacks_is_one_error(
    engine: str, installed: str, fields: dict[str, Any], problem: str | None
) -> None:
    asked = spec(engine, **fields)
    if problem is None:
        check_parameters(engine_of(asked), asked, installed)
        return
    with pytest.raises(ConfigError) as caught:
        check_parameters(engine_of(asked), asked, installed)
    assert str(caught.value).startswith(f"servers.s: {next(iter(fields))}: {problem}")


def test_flags_of_canonical_parameters_are_known_by_name() -> None:
    words = named_words(ENGINES["sglang"].parameters)
    assert words["--disable-radix-cache"] == "enable_prefix_caching"
    assert {word for word in words if not word.startswith("--")} == set()
    assert named_words(ENGINES["vllm"].parameters)["--no-enable-prefix-caching"] == "enable_prefix_caching"
    assert named_words({"max_num_seqs": "slots"}) == {"slots": "max_num_seqs"}


@pytest.mark.parametrize("engine", ["vllm", "sglang", "trtllm", "tgi", "lmdeploy", "transformers"])
def test_a_launch_needs_a_model_that_is_there(engine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    find = ENGINES[engine].find_model
    with pytest.raises(ConfigError, match=f"servers.s: model: {engine} is launched with a model; name it"):
        find(spec(engine))
    (tmp_path / "m").mkdir()
    assert find(spec(engine, model=str(tmp_path / "m"))) == str(tmp_path / "m")
    for absent in (str(tmp_path / "none"), "./none"):
        with pytest.raises(ConfigError, match=r"model: '.*none' does not exist \(looked for /"):
            find(spec(engine, model=absent))
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    with pytest.raises(InfraError, match=r"'org/m' is no path .*not in the hub's cache, .*/hub: .*hf download org/m"):
        find(spec(engine, model="org/m"))
    other = {"HF_HOME": str(tmp_path / "home"), "HF_HUB_CACHE": ""}
    with pytest.raises(InfraError, match="home/hub"):
        find(spec(engine, model="org/m", env=other))
    assert find(spec(engine, model="/in/the/image", image="x")) == "/in/the/image"


def test_ollama_and_llama_server_need_a_model_too(tmp_path: Path) -> None:
    assert ENGINES["ollama"].find_model(spec("ollama", model="m:1b")) == "m:1b"
    with pytest.raises(ConfigError, match="ollama is launched with a model"):
        ENGINES["ollama"].find_model(spec("ollama"))
    with pytest.raises(ConfigError, match=r"none\.gguf' is no file"):
        ENGINES["llamacpp"].find_model(spec("llamacpp", model=str(tmp_path / "none.gguf")))
    (tmp_path / "m.gguf").touch()
    assert ENGINES["llamacpp"].find_model(spec("llamacpp", model=str(tmp_path / "m.gguf"))).endswith("/m.gguf")
