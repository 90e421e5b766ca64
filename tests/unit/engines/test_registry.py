"""Engines that users add, and what is refused."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from importlib.metadata import EntryPoint
from typing import Any

import pytest

import pytest_llmperf
from pytest_llmperf import Engine, Flag, register_engine
from pytest_llmperf.engines import ENGINES, add_installed, registry
from pytest_llmperf.errors import ConfigError

MINE = Engine(
    name="mine",
    title="my server",
    parameters={"max_num_seqs": "--slots", "enable_prefix_caching": Flag("--cache", off="--no-cache", since="2.0")},
    default_port=9000,
    cpu=True,
    command=lambda _spec, port, model: ["mine", model, str(port)],
    metrics_url=":9001/metrics",
    series={"running": ("mine_running",)},
    log_patterns={"kv_capacity_tokens": (r"tokens: (\d+)",)},
)


@pytest.fixture(autouse=True)
def _table() -> Iterator[None]:
    kept = dict(ENGINES)
    add_installed.cache_clear()
    yield
    ENGINES.clear()
    ENGINES.update(kept)
    add_installed.cache_clear()


def test_an_engine_is_added_once_and_the_same_again_changes_nothing() -> None:
    register_engine(MINE)
    assert ENGINES["mine"] is MINE
    register_engine(MINE)
    assert pytest_llmperf.Engine is Engine
    with pytest.raises(ConfigError, match=r"register_engine: name: there is an engine 'mine' already; choose another"):
        register_engine(replace(MINE, title="another"))
    with pytest.raises(ConfigError, match="there is an engine 'vllm' already"):
        register_engine(replace(MINE, name="vllm"))


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"name": "My Engine"}, "name: 'My Engine': write lower-case letters"),
        ({"command": "mine serve"}, "mine.command: 'mine serve' is no function"),
        ({"parameters": {"max_num_seq": "--n"}}, "mine.parameters: there is no parameter 'max_num_seq'; did you mean"),
        ({"default_port": 0}, "mine.default_port: 0 is no port"),
        ({"ready_path": "health"}, "mine.ready_path: 'health' is no path; write '/health'"),
        ({"info_paths": ("/a", "b")}, "mine.info_paths: 'b' is no path"),
        ({"reset_paths": ("flush",)}, "mine.reset_paths: 'flush' is no path"),
        ({"metrics_url": "http://h/m"}, "mine.metrics_url: 'http://h/m': write a path"),
        ({"series": {"runing": ("x",)}}, "mine.series: there is no 'runing'; did you mean 'running'?"),
        ({"series": {"running": "x"}}, "mine.series: running: 'x' is one text; write ('x',)"),
        ({"log_patterns": {"errors": ("(x)",)}}, "mine.log_patterns: there is no 'errors'; did you mean 'error'?"),
        ({"log_patterns": {"error": ("x",)}}, "mine.log_patterns: error: 'x' has no group; put the value into (…)"),
        ({"log_series": {"waitin": ("(x)",)}}, "mine.log_series: there is no 'waitin'; did you mean 'waiting'?"),
        ({"log_series": {"waiting": ("x",)}}, "mine.log_series: waiting: 'x' has no group; put the value into (…)"),
        ({"log_patterns": {"error": ("(",)}}, "mine.log_patterns: error: '(' is no regular expression"),
    ],
)
def test_a_field_that_can_not_be_right_is_named(changes: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigError) as caught:
        register_engine(replace(MINE, **changes))
    assert str(caught.value).startswith(f"register_engine: {problem}")
    assert "mine" not in ENGINES


def test_what_is_no_engine_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"register_engine: 'vllm' is no pytest_llmperf\.Engine"):
        register_engine("vllm")  # type: ignore[arg-type]


def test_entry_points_are_added_when_the_configuration_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    found = [EntryPoint("mine", f"{__name__}:MINE", registry.GROUP)]
    monkeypatch.setattr(registry, "entry_points", lambda group: found if group == "pytest_llmperf.engines" else [])
    add_installed()
    assert ENGINES["mine"] is MINE
    found[0] = EntryPoint("mine", "no_such_module:MINE", registry.GROUP)
    add_installed.cache_clear()
    with pytest.raises(
        ConfigError, match=r"entry point mine of a package: pytest_llmperf\.engines: no_such_module:MINE"
    ):
        add_installed()
