"""Keys of the configuration that say what is compared: read, checked, and refused with file, key and value."""

from __future__ import annotations

import datetime
from pathlib import Path

import pytest

from pytest_llmperf.errors import ConfigError
from pytest_llmperf.settings import Budget, Overrides, Settings, load_settings, server_named
from pytest_llmperf.settings.changes import changed

WHOLE = """
pool = "h200-a"
baselines = "s3://bucket/prefix"
against = "latest"
ab = "max_num_seqs=8"
allow = ["driver"]
budget = "6 GPUh"
[servers.v]
engine = "vllm"
url = "http://h:1"
identity = { quantization = "fp8", gpu = "NVIDIA H200", gpu_count = 8, "args.--enforce-eager" = "set" }
[servers.e]
engine = "embedded"
version = "2026.9.1"
[servers.image]
engine = "vllm"
version = "0.33.0"
image_template = "vllm/vllm-openai:v{version}"
[variants.fp8]
quantization = "fp8"
kv_cache_dtype = "fp8"
args.--enforce-eager = true
[prices]
"NVIDIA H200" = "3.50 USD/h"
[[accept]]
test = "test_chat"
metric = "ttft_p95"
up_to = "8 %"
reason = "safer scheduler"
until = 2027-01-31
approved_by = "ada"
"""


def settings(tmp_path: Path, text: str) -> Settings:
    (tmp_path / "llmperf.toml").write_text(text)
    return load_settings(tmp_path)


def test_all_keys_are_read(tmp_path: Path) -> None:
    found = settings(tmp_path, WHOLE)
    assert (found.pool, found.baselines, found.against, found.ab) == (
        "h200-a", "s3://bucket/prefix", "latest", "max_num_seqs=8",
    )  # fmt: skip
    assert found.allow == ("driver",)
    assert found.budget == Budget(written="6 GPUh", gpu_hours=6.0)
    assert found.prices == {"NVIDIA H200": 3.5}
    (accept,) = found.accept
    assert (accept.test, accept.metric, accept.up_to, accept.until) == (
        "test_chat", "ttft_p95", 0.08, datetime.date(2027, 1, 31),
    )  # fmt: skip
    server = server_named("v", found, Overrides())
    assert server.identity["gpu_count"] == "8"
    assert server_named("e", found, Overrides()).version == "2026.9.1"


def test_budgets_are_times_or_gpu_hours() -> None:
    assert Budget.parse("30 min") == Budget(written="30 min", seconds=1800.0)
    for written in ("30", "30 GB", "-1 s", "0 min", "six GPUh"):
        with pytest.raises(ValueError, match=r"write e\.g\. '30 min' or '6 GPUh'"):
            Budget.parse(written)


def test_a_version_on_the_command_line_is_text(tmp_path: Path) -> None:
    found = settings(tmp_path, "[servers.e]\nengine = 'embedded'\n")
    assert server_named("e", found, Overrides(assignments=("version=0.33",))).version == "0.33"


ACCEPT = WHOLE[WHOLE.index("[[accept]]") :]
SERVER = "[servers.s]\nengine = 'vllm'\n"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("budget = '30'", "budget: '30' is no budget; write e.g. '30 min' or '6 GPUh'"),
        ("budget = 30", "budget: '30' is no budget; write e.g. '30 min' or '6 GPUh'"),
        ("pool = ''", "pool: ''"),
        ("[prices]\n'H200' = 3.5", "prices.H200: 3.5 has no unit; write e.g. '1 USD/h'"),
        ("[prices]\n'H200' = '3 USD'", "has the unknown unit 'USD'; allowed here: USD/h"),
        (ACCEPT.replace("ttft_p95", "ttft_95"), "accept.0.metric: unknown metric 'ttft_95'; did you mean 'ttft_p95'?"),
        (ACCEPT.replace('"8 %"', '"-8 %"'), "accept.0.up_to: '-8 %': input should be greater than 0"),
        (ACCEPT.replace("2027-01-31", "'soon'"), "accept.0.until: 'soon': input should be a valid date"),
        (ACCEPT.replace('"ada"', '""'), "accept.0.approved_by: ''"),
        (ACCEPT.replace('reason = "safer scheduler"', ""), "accept.0.reason: is required"),
        (ACCEPT.replace("reason", "reasn"), "accept.0.reasn: unknown key"),
        ("[variants.x]\n", "variants.x: is empty; write at least one key of a server"),
        ("[variants.x]\nquantisation = 'fp8'", "variants.x.quantisation: unknown key; did you mean 'quantization'?"),
        ("[variants.x]\nport = 1", "variants.x.port: unknown key"),
        (SERVER + "version = '1 2'", "servers.s.version: '1 2' is not a version; write e.g. '0.33.0'"),
        (SERVER + "version = 0.33", "servers.s.version: 0.33: input should be a valid string"),
        (SERVER + "image = 'a'\nexecutable = 'b'", "image and executable both say what to run; keep one of them"),
        (SERVER + "image_template = 'a:{version}'", "image_template = 'a:{version}' needs version"),
        (SERVER + "version = '1'\nimage_template = 'a'", "is the same for every version; write {version} into it"),
        (SERVER + "version = '1'\nimage_template = 'a:{v}'", "may hold {version} and no other braces"),
        (SERVER + "version = '1'\nimage = 'a:{version}'", "with {version} it is an image_template"),
        (SERVER + "version = '1'\nexecutable = '/b'", "write {version} into it, or leave out version"),
        (SERVER + "url = 'http://h:1'\nversion = '1'", "version cannot be applied to a server that is running"),
        (
            SERVER + "url = 'http://h:1'\ngpus = [0, 1]",
            "gpus = [0, 1] are this machine's, and url = 'http://h:1' leads to another: leave gpus out",
        ),
        (SERVER + "url = 'https://10.0.0.7/v1'\ngpus = [0]", "url = 'https://10.0.0.7/v1' leads to another"),
        (SERVER + "gpus = 'any'", "gpus = 'any' is no list of numbers, e.g. [0, 1], and neither 'any:2' nor 'none'"),
        (SERVER + "gpus = 'any:0'", "gpus = 'any:0' is no list"),
        (SERVER + "gpus = [0]\nany_gpus = 1", "gpus and any_gpus both say which GPUs it has; keep one of them"),
        (SERVER + "lock_clocks = 1500", "lock_clocks needs gpus: whose clocks?"),
        (SERVER + "gpu_wait = 10", "servers.s.gpu_wait: 10 has no unit; write e.g. '10 s'"),
        (SERVER + "gpus = [0]\nenv = {CUDA_VISIBLE_DEVICES = '0'}", "gpus and env.CUDA_VISIBLE_DEVICES both say"),
        (
            SERVER + "url = 'http://127.0.0.1:1'\ngpus = 'any:1'",
            "gpus = 'any:…' cannot be applied to a server that is running",
        ),
        (SERVER + "url = 'http://h:1'\ngpus = 'none'", "gpus = 'none' cannot be applied to a server that is running"),
        (SERVER + "gpus = 'none'\nany_gpus = 1", "no_gpus and GPUs are both asked for; keep one of them"),
        (SERVER + "gpus = 'none'\nlock_clocks = 1500", "lock_clocks needs gpus"),
        (SERVER + "gpus = 'none'\nenv = {CUDA_VISIBLE_DEVICES = '0'}", "gpus and env.CUDA_VISIBLE_DEVICES both say"),
        (SERVER + "gpus = 0", "servers.s.gpus: 0 is no list; write [0]"),
        (SERVER + "gpus = true", "servers.s.gpus: True is no list"),
        (SERVER + "env = 'A=1'", 'servers.s.env: a text is no table; write e.g. { NAME = "value" }'),
        (SERVER + "gpus = [-1]", "servers.s.gpus: [-1]: GPUs are numbered from 0 on"),
        (SERVER + "gpus = [1, 0, 1]", "servers.s.gpus: [1, 0, 1] names a GPU twice"),
        ("[workers.gw0]\ngpus = [1, 1]", "workers.gw0.gpus: [1, 1] names a GPU twice"),
        (SERVER + "extra_args = '--a b'", 'servers.s.extra_args: a text is no list; write ["…"]'),
        (SERVER + "start = './start.sh'", 'servers.s.start: a text is no list; write ["…"]'),
        (SERVER + "swap_space = '4 gib'", "servers.s.swap_space: '4 gib' has the unknown unit 'gib'; allowed here: B"),
        (SERVER + "kv_offloading_size = '-1 GB'", "servers.s.kv_offloading_size: '-1 GB': input should be greater"),
        (SERVER + "image = 'a'\nshm_size = 16", "servers.s.shm_size: 16 has no unit; write e.g. '16 GiB'"),
        (SERVER + "folder = '/'", "servers.s.folder: unknown key"),
        (SERVER + "identity = {gpus = 8}", "servers.s.identity.gpus: unknown field; did you mean 'gpu'?"),
        (SERVER + "identity = {workload = 'x'}", "servers.s.identity.workload: unknown field"),
        (SERVER + "identity = {gpu = []}", "gpu = [] is neither text nor a number"),
        (SERVER + "identity = {args = 'none'}", "identity.args is known of a server that is started here"),
    ],
)
def test_a_wrong_value_names_file_key_and_what_would_be_right(tmp_path: Path, text: str, problem: str) -> None:
    with pytest.raises(ConfigError) as caught:
        settings(tmp_path, text)
    assert problem in str(caught.value)
    assert str(caught.value).startswith(f"{tmp_path / 'llmperf.toml'}: ")
    assert ".: " not in str(caught.value)


@pytest.mark.parametrize(
    "url",
    ["http://127.0.0.1:8000", "http://127.8.0.1:1", "http://[::1]:1", "http://localhost:1", "unix:///run/llm.sock"],
)
def test_a_running_server_of_this_machine_may_have_gpus(tmp_path: Path, url: str) -> None:
    found = settings(tmp_path, f"[servers.s]\nengine = 'vllm'\nurl = '{url}'\ngpus = [1]\n")
    assert server_named("s", found, Overrides()).gpus == (1,)


def test_any_gpus_and_how_long_to_wait_for_them(tmp_path: Path) -> None:
    text = "[servers.s]\nengine = 'vllm'\ngpus = 'any:2'\ngpu_wait = '5 min'\ngpu_shared = true\n"
    found = settings(tmp_path, text)
    read = server_named("s", found, Overrides())
    assert (read.gpus, read.any_gpus, read.gpu_count, read.gpu_wait, read.gpu_shared) == ((), 2, 2, 300.0, True)
    one = server_named("s", found, Overrides(assignments=("gpus=any:1", "gpu_wait='0 s'")))
    assert (one.gpu_count, one.gpu_wait) == (1, 0.0)
    assert server_named("s", found, Overrides(assignments=("gpus=[3]",))).gpus == (3,)
    none = server_named("s", found, Overrides(assignments=("gpus='none'",)))
    assert (none.no_gpus, none.any_gpus, none.gpu_count) == (True, 0, 0)
    assert server_named(None, found, Overrides(server="s", url="http://127.0.0.1:1")).gpu_count == 0
    assert server_named("s", settings(tmp_path, "[servers.s]\nengine = 'embedded'\n"), Overrides()).gpu_wait == 1800


def test_a_url_of_the_command_line_takes_the_gpus_along_only_on_this_machine(tmp_path: Path) -> None:
    found = settings(tmp_path, "[servers.s]\nengine = 'vllm'\ngpus = [1]\n")
    assert server_named(None, found, Overrides(server="s", url="http://127.0.0.1:1")).gpus == (1,)
    assert server_named(None, found, Overrides(server="s", url="http://far:1")).gpus == ()
    with pytest.raises(ConfigError, match=r"gpus = \[2\] are this machine's"):
        server_named(None, found, Overrides(server="s", url="http://far:1", assignments=("gpus=[2]",)))


def test_the_engine_of_this_package_is_in_no_image(tmp_path: Path) -> None:
    text = "[servers.s]\nengine = 'embedded'\nversion = '1'\nimage_template = 'a:{version}'\n"
    found = settings(tmp_path, text)
    with pytest.raises(ConfigError, match=r"servers\.s\.image_template: the embedded engine is part of this package"):
        server_named("s", found, Overrides())


def test_memory_of_the_host_has_a_unit_or_is_a_number_of_gib(tmp_path: Path) -> None:
    text = "[servers.s]\nengine = 'vllm'\nswap_space = '4 GiB'\nkv_offloading_size = '8 GB'\n"
    read = server_named("s", settings(tmp_path, text), Overrides())
    assert (read.swap_space, read.kv_offloading_size) == (4.0, pytest.approx(8e9 / 1024**3))
    found = settings(tmp_path, text)
    given = server_named("s", found, Overrides(assignments=("swap_space=2", "kv_offloading_size='512 MiB'")))
    assert (given.swap_space, given.kv_offloading_size) == (2.0, 0.5)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("engine = 'vllm'\nthreads = 4", "servers.s.threads: vLLM has no such parameter; it has: max_num_seqs"),
        (
            "engine = 'vllm'\nversion = '0.33.0'\nswap_space = 4",
            "servers.s.swap_space: vLLM 0.33.0 has no such parameter: it is gone since 0.18; use kv_offloading_size",
        ),
        (
            "engine = 'vllm'\nversion = '0.9.0'\nimage_template = 'a:v{version}'\nkv_offloading_size = 4",
            "servers.s.kv_offloading_size: vLLM 0.9.0 has no such parameter: it came with 0.11.1",
        ),
        ("engine = 'embedded'\ngpus = [0]", "servers.s.gpus: the embedded engine computes on the CPU; leave it out"),
        (
            "engine = 'sglang'\nenable_chunked_prefill = false\nmax_num_batched_tokens = 64",
            "servers.s.max_num_batched_tokens: sets --chunked-prefill-size, which enable_chunked_prefill sets too",
        ),
        (
            "engine = 'vllm'\nmax_num_seqs = 4\nextra_args = ['--max-num-seqs', '8']",
            "servers.s.extra_args: --max-num-seqs is the flag of max_num_seqs; write max_num_seqs = … instead",
        ),
        ("engine = 'vllm'\nextra_args = ['--max_num_seqs=8']", "--max_num_seqs is the flag of max_num_seqs"),
        ("engine = 'vllm'\nextra_args = ['--x', '--port', '8000']", "--port is the flag of port; write port = …"),
        ("engine = 'vllm'\nextra_args = ['--model=b']", "--model is the flag of model; write model = … instead"),
        ("engine = 'vllm'\nextra_args = ['--no-enable-prefix-caching']", "is the flag of enable_prefix_caching"),
        ("engine = 'lmdeploy'\nextra_args = ['--server-port', '1']", "--server-port is the flag of port"),
        ("engine = 'vllm'\nextra_args = ['-tp', '2']", "-tp is the flag of tensor_parallel_size"),
        ("engine = 'vllm'\nextra_args = ['-q=fp8']", "-q is the flag of quantization"),
        ("engine = 'sglang'\nextra_args = ['--tp', '2']", "--tp is the flag of tensor_parallel_size"),
        ("engine = 'llamacpp'\nextra_args = ['-m', 'b']", "-m is the flag of model"),
        ("engine = 'tgi'\nextra_args = ['-p', '1']", "-p is the flag of port"),
        ("engine = 'llamacpp'\nextra_args = ['-c', '2']", "-c is the flag of max_model_len"),
        ("engine = 'trtllm'\nextra_args = ['--free_gpu_memory_fraction=1']", "is the flag of gpu_memory_utilization"),
        (
            "engine = 'vllm'\nquantization = 'bf16'\nextra_args = ['--dtype', 'float16']",
            "servers.s.extra_args: --dtype is what quantization = 'bf16' sets too",
        ),
        ("engine = 'tgi'\nextra_args = ['--model-id', 'b']", "--model-id is the flag of model"),
        ("engine = 'sglang'\nextra_args = ['--hicache-size', '8']", "is the flag of kv_offloading_size"),
        (
            "engine = 'ollama'\nmax_num_seqs = 4\nenv = {OLLAMA_NUM_PARALLEL = '8'}",
            "servers.s.env.OLLAMA_NUM_PARALLEL: is the variable of max_num_seqs; write max_num_seqs = … instead",
        ),
        ("engine = 'ollama'\nenv = {OLLAMA_HOST = '0.0.0.0:1'}", "env.OLLAMA_HOST: is the variable of port"),
        ("engine = 'tgi'\nenv = {PREFIX_CACHING = '0'}", "PREFIX_CACHING: is the variable of enable_prefix_caching"),
        (
            "engine = 'triton'",
            'engine: Triton is not started by itself: give the command that starts it (launcher = "command" with start',
        ),
        (
            "engine = 'openai'\nstart = ['run', '{command}']\nready_url = 'http://127.0.0.1:1'",
            "has no command line of its own here: give the command that starts it",
        ),
    ],
)  # fmt: skip
def test_a_server_that_cannot_work_is_refused_when_a_test_names_it(tmp_path: Path, text: str, problem: str) -> None:
    found = settings(tmp_path, f"[servers.s]\nmodel = 'a'\n{text}\n[servers.other]\nengine = 'embedded'\n")
    with pytest.raises(ConfigError) as caught:
        server_named("s", found, Overrides())
    assert problem in str(caught.value)
    assert str(caught.value).startswith(f"{tmp_path / 'llmperf.toml'}: servers.s.")
    assert server_named("other", found, Overrides()).engine == "embedded"


@pytest.mark.parametrize(
    "text",
    [
        "engine = 'vllm'\nextra_args = ['--host', '0.0.0.0', '--enforce-eager', '--seed', '3']",
        "engine = 'vllm'\nmodel = 'a'\nurl = 'http://h:1'\nthreads = 4",
        "engine = 'triton'\nstart = ['run']\nready_url = 'http://127.0.0.1:1'",
        "engine = 'trtllm'\nmodel = 'a'\nextra_args = ['--config', 'mine.yaml']",
    ],
)
def test_what_no_key_says_may_be_said_by_flags(tmp_path: Path, text: str) -> None:
    assert server_named("s", settings(tmp_path, f"[servers.s]\n{text}\n"), Overrides()).name == "s"


def test_relative_paths_start_from_the_folder_of_the_configuration(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "a.gguf").write_bytes(b"")
    monkeypatch.chdir(tmp_path / "elsewhere")
    text = """
[servers.s]
engine = "vllm"
model = "models/a.gguf"
start = ["bin/start.sh", "./{port}.cfg", "../x", "deploy/it", "{model}", "./a b"]
stop = ["./stop.sh"]
logs = ["kubectl", "logs", "deploy/it"]
ready_url = "http://127.0.0.1:{port}"
[servers.e]
engine = "vllm"
model = "org/name"
version = "0.33.0"
executable = "v/{version}/vllm"
"""
    found = settings(tmp_path, text)
    read = server_named("s", found, Overrides())
    model = str(tmp_path / "models" / "a.gguf")
    assert read.filled(read.start, 7) == (
        f"{tmp_path}/bin/start.sh", f"{tmp_path}/7.cfg", f"{tmp_path}/../x", "deploy/it", model, "./a b",
    )  # fmt: skip
    assert read.filled(read.stop, 7) == (f"{tmp_path}/stop.sh",)
    assert read.filled(read.logs, 7) == ("kubectl", "logs", "deploy/it")
    assert read.start[0] == "bin/start.sh"  # the identity has it as it is written, wherever the checkout lies
    own = server_named("e", found, Overrides())
    assert (own.program, own.model) == (f"{tmp_path}/v/0.33.0/vllm", "org/name")
    assert changed(own, {"version": "0.34.0"}, "--llmperf-ab").program == f"{tmp_path}/v/0.34.0/vllm"
    assert "folder" not in own.model_dump()
