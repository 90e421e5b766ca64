"""``--llmperf-ab``: every key makes two specifications that differ in it alone; every mistake is one clear line."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from pytest_llmperf.engines import ENGINES, embedded
from pytest_llmperf.errors import ConfigError
from pytest_llmperf.plan import ServerSpec
from pytest_llmperf.settings import Overrides, Settings
from pytest_llmperf.variables import Arms, against_version, parse_ab, parse_allow, unlaunchable_versions

SETTINGS = Settings.model_validate(
    {
        "source": "llmperf.toml",
        "servers": {
            "small": {"engine": "embedded", "threads": 1},
            "large": {"engine": "embedded", "threads": 2, "max_num_seqs": 8},
            "remote": {"engine": "vllm", "url": "http://h:1"},
        },
        "variants": {
            "wide": {"max_num_seqs": 8, "args": {"--batch-size": 64}, "env": {"A": "1"}},
            "same": {"threads": 1},
            "odd": {"max_num_seqs": "many"},
            "bad": {"batch": 3},
            "empty": {},
        },
    }
)


@pytest.fixture(autouse=True)
def launchable(monkeypatch: pytest.MonkeyPatch) -> None:
    """vLLM as an engine that can be launched, from the package index, as one is that later versions launch."""
    vllm = replace(ENGINES["vllm"], command=lambda _spec, _port, _model: ["vllm"], distribution="vllm", program="vllm")
    monkeypatch.setitem(ENGINES, "vllm", vllm)
    ours = replace(ENGINES["embedded"], launch_version=lambda: "2026.10.1")
    monkeypatch.setitem(ENGINES, "embedded", ours)


def spec(**fields: Any) -> ServerSpec:
    return ServerSpec.model_validate({"name": "s", "engine": "embedded", **fields})


def ab(written: str, **fields: Any) -> Arms:
    return parse_ab(written, spec(**fields), SETTINGS, Overrides())


def only_change(arms: Arms) -> dict[str, tuple[object, object]]:
    ours, theirs = arms.baseline.model_dump(), arms.candidate.model_dump()
    return {name: (ours[name], theirs[name]) for name in ours if ours[name] != theirs[name]}


@pytest.mark.parametrize(
    ("written", "fields", "change", "declared", "text"),
    [
        (
            "max_num_seqs=8",
            {"max_num_seqs": 4},
            {"max_num_seqs": (4, 8)},
            ("max_num_seqs",),
            "max_num_seqs: 4 → 8",
        ),
        ("threads=2", {}, {"threads": (None, 2)}, ("threads",), "threads: 1 → 2"),
        (
            "enable_prefix_caching=false",
            {},
            {"enable_prefix_caching": (None, False)},
            ("enable_prefix_caching",),
            "enable_prefix_caching: true → false",
        ),
        ("version=2026.9", {}, {"version": (None, "2026.9")}, ("version",), "version: 2026.10.1 → 2026.9"),
        (
            "version=2",
            {"version": "1", "executable": "/o/{version}/py"},
            {"version": ("1", "2")},
            ("version",),
            "version: 1 → 2",
        ),
        (
            "executable=/b/py",
            {"executable": "/a/py"},
            {"executable": ("/a/py", "/b/py")},
            ("executable", "version"),
            "executable: /a/py → /b/py",
        ),
        (
            "executable=/b/py",
            {"version": "1"},
            {"executable": (None, "/b/py"), "version": ("1", None)},
            ("executable", "version"),
            "executable: default → /b/py",
        ),
        (
            "model=/m.gguf",
            {},
            {"model": (None, "/m.gguf")},
            ("model", "model_digest", "model_revision", "quantization"),
            "model: default → /m.gguf",
        ),
        (
            "model=b",
            {"engine": "vllm", "model": "a", "quantization": "fp8"},
            {"model": ("a", "b")},
            ("model", "model_digest", "model_revision"),
            "model: a → b",
        ),
        (
            "quantization=fp8",
            {"engine": "vllm"},
            {"quantization": (None, "fp8")},
            ("quantization",),
            "quantization: default → fp8",
        ),
        (
            "kv_cache_dtype=fp8",
            {"engine": "vllm"},
            {"kv_cache_dtype": (None, "fp8")},
            ("kv_cache_dtype",),
            "kv_cache_dtype: default → fp8",
        ),
        (
            "engine=embedded",
            {"engine": "vllm", "version": "0.33.0"},
            {"engine": ("vllm", "embedded"), "version": ("0.33.0", None)},
            ("engine", "version"),
            "engine: vllm → embedded",
        ),
        ("env.A=1", {}, {"env": ({}, {"A": "1"})}, ("env.A",), "env.A: not set → 1"),
        ("env.A=", {"env": {"A": "1"}}, {"env": ({"A": "1"}, {"A": ""})}, ("env.A",), "env.A: 1 → "),
        (
            "env.MY_TOKEN=new",
            {"env": {"MY_TOKEN": "old"}},
            {"env": ({"MY_TOKEN": "old"}, {"MY_TOKEN": "new"})},
            ("env.MY_TOKEN",),
            "env.MY_TOKEN: *** → ***",
        ),
        (
            "args.--batch-size=64",
            {"extra_args": ("--batch-size", "32", "--x")},
            {"extra_args": (("--batch-size", "32", "--x"), ("--batch-size", "64", "--x"))},
            ("args.--batch-size",),
            "args.--batch-size: 32 → 64",
        ),
        (
            "args.--eager",
            {},
            {"extra_args": ((), ("--eager",))},
            ("args.--eager",),
            "args.--eager: not set → set",
        ),
        (
            "args.--eager=",
            {"extra_args": ("--eager",)},
            {"extra_args": (("--eager",), ())},
            ("args.--eager",),
            "args.--eager: set → not set",
        ),
        (
            "variant=wide",
            {},
            {
                "max_num_seqs": (None, 8),
                "extra_args": ((), ("--batch-size", "64")),
                "env": ({}, {"A": "1"}),
            },
            ("max_num_seqs", "args.--batch-size", "env.A"),
            "variant wide (max_num_seqs: 2 → 8, args.--batch-size: not set → 64, env.A: not set → 1)",
        ),
    ],
)
def test_every_key_changes_itself_alone(
    written: str, fields: dict[str, Any], change: dict[str, Any], declared: tuple[str, ...], text: str
) -> None:
    arms = ab(written, **fields)
    assert arms.baseline == spec(**fields)
    assert only_change(arms) == change
    assert (arms.declared, arms.text) == (declared, text)


def test_a_whole_server_is_the_candidate_with_the_same_overrides() -> None:
    small = ServerSpec(name="small", engine="embedded", threads=1, max_model_len=512)
    arms = parse_ab("server=large", small, SETTINGS, Overrides(assignments=("max_model_len=512",), server="small"))
    assert arms.baseline is small
    assert (arms.candidate.name, arms.candidate.max_model_len, arms.candidate.threads) == ("large", 512, 2)
    assert (arms.declared, arms.text) == (("server",), "server: small → large")


def test_two_urls_are_two_running_servers_with_the_settings_of_the_one() -> None:
    arms = ab("url=http://a:1,http://b:2", engine="vllm", api_key_env="K", extra_args=("--x",), version="1", gpus=(0,))
    assert [arm.url for arm in (arms.baseline, arms.candidate)] == ["http://a:1", "http://b:2"]
    assert (arms.candidate.api_key_env, arms.candidate.extra_args, arms.candidate.gpus) == ("K", (), ())
    assert (arms.declared, arms.text) == (("url",), "url: http://a:1 → http://b:2")


@pytest.mark.parametrize(
    ("written", "fields", "problem"),
    [
        ("max_num_seq=8", {}, "--llmperf-ab: max_num_seq: unknown variable; did you mean 'max_num_seqs'?"),
        ("port=8", {}, "--llmperf-ab: port: unknown variable"),
        ("max_num_seqs", {}, "--llmperf-ab: max_num_seqs: write key=value, e.g. max_num_seqs=8"),
        ("max_num_seqs=", {}, "write key=value"),
        ("=8", {}, "write key=value"),
        ("max_num_seqs=many", {}, "--llmperf-ab: max_num_seqs: 'many': input should be a valid integer"),
        ("max_num_seqs=0", {}, "--llmperf-ab: max_num_seqs: 0: input should be greater than or equal to 1"),
        ("max_num_seqs=2", {}, "--llmperf-ab: max_num_seqs: both arms would have '2': nothing would be compared"),
        ("max_num_seqs=4", {"max_num_seqs": 4}, "both arms would have '4'"),
        ("version=2026.10.1", {}, "version: both arms would have '2026.10.1'"),
        ("version=a b", {}, "--llmperf-ab: version: 'a b' is not a version; write e.g. '0.33.0'"),
        ("version=2", {"executable": "/a/py"}, "is the same for every version; write {version} into it"),
        ("env.A=1", {"env": {"A": "1"}}, "env.A: both arms would have '1'"),
        ("args.--x=1", {"extra_args": ("--x=1",)}, "args.--x: both arms would have '1'"),
        ("args.--x=", {}, "both arms would have 'not set'"),
        ("args.x=1", {}, "--llmperf-ab: args.x: is no flag; write e.g. args.--enforce-eager"),
        ("args.--threads=2", {}, "args.--threads: is the flag of threads; write threads=…"),
        ("threads=2", {"engine": "vllm"}, "--llmperf-ab: threads: vLLM has no such parameter; it has: max_num_seqs"),
        ("quantization=fp8", {}, "--llmperf-ab: quantization: the embedded engine has no such parameter"),
        ("kv_cache_dtype=fp8", {}, "kv_cache_dtype: the embedded engine has no such parameter"),
        ("engine=vlm", {}, "--llmperf-ab: engine: unknown engine 'vlm'; did you mean 'vllm'?"),
        ("engine=triton", {}, 'Triton is not started by itself: give the command that starts it (launcher = "command"'),
        ("engine=vllm", {"threads": 1}, "threads: vLLM has no such parameter"),
        ("image=vllm/vllm:v1", {}, "image: the embedded engine is part of this package and in no image"),
        ("executable=/o/{version}/py", {}, "executable = '/o/{version}/py' needs version"),
        ("max_num_seqs=8", {"url": "http://h:1"}, "cannot be changed from here; compare two of them with url=A,B"),
        ("variant=wid", {}, "--llmperf-ab: variant: no variant 'wid'; did you mean 'wide'?"),
        ("variant=same", {}, "variant same: both arms would have '1'"),
        ("variant=odd", {}, "max_num_seqs: 'many': input should be a valid integer"),
        ("variant=bad", {}, "llmperf.toml: variants.bad.batch: unknown key"),
        ("variant=empty", {}, "llmperf.toml: variants.empty: is empty; write at least one key"),
        ("server=larg", {}, "--llmperf-ab: server: no server 'larg'; did you mean 'large'?"),
        ("server=small", {"threads": 1}, "server: both arms would have 's'"),
        ("server=remote", {}, "server 'remote' is a running one (url), which cannot take turns; use url=A,B"),
        ("url=http://a:1", {}, "--llmperf-ab: url: 'http://a:1': write the URLs of two running servers, url=A,B"),
        ("url=http://a:1,http://a:1", {}, "url: both arms would have 'http://a:1'"),
        ("url=http://a:1,b", {}, "'b' is not the URL of a server"),
        ("url=http://a:1,http://me:secret@h", {}, "holds credentials; keys go into api_key_env"),
    ],
)
def test_every_mistake_is_one_line_that_says_what_would_be_right(
    written: str, fields: dict[str, Any], problem: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        ab(written, **fields)
    assert problem in str(caught.value)
    assert "secret" not in str(caught.value)


def test_no_variants_at_all_is_said() -> None:
    bare = Settings.model_validate({"source": "llmperf.toml"})
    with pytest.raises(ConfigError, match=r"no variant 'fp8'; llmperf\.toml has none"):
        parse_ab("variant=fp8", spec(), bare, Overrides())


def test_a_gate_against_a_version_has_the_configured_one_as_candidate() -> None:
    arms = against_version("2026.9", spec())
    assert (arms.baseline.version, arms.candidate, arms.declared) == ("2026.9", spec(), ("version",))
    assert arms.text == "version: 2026.9 → 2026.10.1"
    with pytest.raises(ConfigError, match=r"--llmperf-against: version: both arms would have '2026\.10\.1'"):
        against_version("2026.10.1", spec())


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({}, None),
        ({"engine": "vllm", "version": "1"}, None),
        ({"version": "1", "executable": "/o/{version}/py"}, None),
        ({"url": "http://h:1"}, "the server runs already (url)"),
        (
            {"engine": "triton"},
            "Triton cannot be launched by this version",
        ),
        ({"start": ["run"], "ready_url": "http://h:1"}, "start is the same for every version; write {version} into it"),
        ({"version": "1", "start": ["run", "{version}"], "ready_url": "http://h:1"}, None),
        ({"executable": "/o/py"}, "executable = '/o/py' is one build; write {version} into its path"),
    ],
)
def test_why_versions_can_not_be_launched(fields: dict[str, Any], reason: str | None) -> None:
    found = unlaunchable_versions(spec(**fields))
    assert (found is None) == (reason is None)
    assert (reason or "") in (found or "")
    if reason is not None:
        with pytest.raises(ConfigError, match="--llmperf-against: version: "):
            against_version("1", spec(**fields))


def test_an_engine_without_a_package_needs_an_executable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ENGINES, "embedded", replace(embedded.EMBEDDED, distribution=None))
    assert "is on no package index; give executable" in (unlaunchable_versions(spec()) or "")


def test_allowed_fields_are_fields_of_an_identity() -> None:
    assert parse_allow(["gpu", "args.--x", "env.A", "gpu", "args"]) == ("gpu", "args.--x", "env.A", "args")
    with pytest.raises(ConfigError, match=r"--llmperf-allow: gpus: no identity has .*; did you mean 'gpu'\?"):
        parse_allow(["gpus"])
