from __future__ import annotations

import pytest

from pytest_llmperf.errors import (
    ConfigError,
    InfraError,
    LlmperfError,
    MarkerError,
    ServerDiedError,
    ServerError,
    ServerStartError,
    TargetError,
    UsageError,
    nearest,
)


def test_the_tree_is_the_one_drawn_in_the_module() -> None:
    assert issubclass(ConfigError, UsageError)
    assert issubclass(MarkerError, UsageError)
    assert issubclass(ServerStartError, ServerError)
    assert issubclass(ServerDiedError, ServerError)
    assert issubclass(TargetError, ServerError)
    for branch in (UsageError, InfraError, ServerError):
        assert issubclass(branch, LlmperfError)


def test_a_configuration_error_names_place_key_and_problem() -> None:
    error = ConfigError("pyproject.toml", "servers.x.port", "70000 is above 65535")
    assert str(error) == "pyproject.toml: servers.x.port: 70000 is above 65535"
    assert str(ConfigError("llmperf.toml", "", "not TOML")) == "llmperf.toml: not TOML"


def test_a_marker_error_reads_like_the_marker() -> None:
    assert str(MarkerError("sla", "ttft_p95", "'500' has no unit")) == (
        "@pytest.mark.sla(ttft_p95=...): '500' has no unit"
    )
    assert str(MarkerError("sla", "", "takes no positional arguments")).startswith("@pytest.mark.sla: ")


@pytest.mark.parametrize(("code", "shown"), [(None, "still running"), (3, "exit code: 3"), (-9, "killed by signal 9")])
def test_a_server_error_shows_command_exit_code_and_last_lines(code: int | None, shown: str) -> None:
    error = ServerStartError(
        "not ready",
        command=["vllm", "serve"],
        exit_code=code,
        log_tail=[f"line {i}" for i in range(50)],
        log_path="x.log",
    )
    text = str(error)
    assert "vllm serve" in text
    assert shown in text
    assert "line 49" in text
    assert "line 30" in text
    assert "line 29" not in text


def test_a_server_error_without_a_log_says_so() -> None:
    error = ServerDiedError("died", command=["x"], exit_code=1, log_tail=[], log_path="x.log")
    assert "(no log lines)" in str(error)


def test_nearest_offers_a_close_word_or_all() -> None:
    assert nearest("concurency", ("concurrency", "requests")) == "; did you mean 'concurrency'?"
    assert nearest("zzz", ("a", "b")) == "; known: a, b"
