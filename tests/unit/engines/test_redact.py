"""Secrets stay out of what is shown."""

from __future__ import annotations

import pytest

from pytest_llmperf.engines.redact import redact, secret_name, secrets


@pytest.mark.parametrize(
    ("command", "shown"),
    [
        (["--api-key", "sk-1", "--port", "1"], ["--api-key", "***", "--port", "1"]),
        (["--api-key", "sk-1", "sk-2", "--port", "1"], ["--api-key", "***", "***", "--port", "1"]),
        (["--hf-token", "hf_1", "model"], ["--hf-token", "***", "model"]),
        (["--hf_token=hf_1"], ["--hf_token=***"]),
        (["--token", "-abc"], ["--token", "***"]),
        (["HF_TOKEN=hf_1", "serve"], ["HF_TOKEN=***", "serve"]),
        (['{"api_key": "sk-1", "n": 1}'], ['{"api_key": "***", "n": 1}']),
        (["https://user:pw@host/x"], ["https://user:***@host/x"]),
        (["--header", "Authorization: Bearer abc"], ["--header", "Authorization: Bearer ***"]),
    ],
)
def test_secret_values_are_replaced(command: list[str], shown: list[str]) -> None:
    assert redact(command) == tuple(shown)


@pytest.mark.parametrize(
    "command",
    [
        ["--max-num-batched-tokens", "8192"],
        ["--tokenizer", "meta/llama"],
        ["--tokenizer-mode=auto"],
        ["--enable-prompt-tokens-details", "x"],
        ["http://host:8000/v1"],
        ["--ssl-keyfile", "/etc/key.pem"],
        ["max_tokens=5"],
    ],
)
def test_other_values_stay(command: list[str]) -> None:
    assert redact(command) == tuple(command)


def test_secret_values_are_known_to_the_log() -> None:
    env = {"HF_TOKEN": "hf_secret", "MY_API_KEY": "sk-secret", "HOME": "/home/me", "A_SECRET": "abc"}
    assert secrets(["--api-key", "sk-other"], env) == {"hf_secret", "sk-secret", "sk-other"}
    assert not secret_name("TOKENIZERS_PARALLELISM")
    assert not secret_name("VLLM_MAX_TOKENS")
    assert secret_name("DB_PWD")
    assert not secret_name("PWD"), "where the shell stands"
