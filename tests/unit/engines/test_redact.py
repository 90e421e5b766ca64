"""Secrets stay out of what is shown."""

from __future__ import annotations

import pytest

from pytest_llmperf.engines import ENGINES
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
        (["sh", "-c", "serve m --api-key sk-1 --port 1"], ["sh", "-c", "serve m --api-key *** --port 1"]),
        (["sh", "-c", "exec x --hf-token 'hf_1'"], ["sh", "-c", "exec x --hf-token '***'"]),
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
        ["sh", "-c", "serve --max-num-batched-tokens 8192 --tokenizer a"],
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


@pytest.mark.parametrize(
    "name",
    [
        *("MY_SECRET_VALUE", "APITOKEN", "API_KEYS", "GITHUB_PAT", "VLLM_API_KEY_1", "HUB_TOKEN_RO", "OPENAI_KEY_2"),
        *("PASSWD_FILE_CONTENT", "ACTIONS_ID_TOKEN_REQUEST_TOKEN", "S3_ACCESS_KEY_ID", "S3_SECRET_ACCESS_KEY"),
        *(
            "NGROK_AUTHTOKEN",
            "CLIENT_AUTH",
            "X-Api-Key",
            "apiKey",
            "ssl-keyfile-password",
            "api-keys",
            "GCP_CREDENTIALS",
        ),
    ],
)
def test_names_of_secrets_are_told_wherever_the_word_stands(name: str) -> None:
    assert secret_name(name)


@pytest.mark.parametrize(
    "name",
    [
        # vLLM: envs.py and arguments of ``vllm serve``
        *("VLLM_MAX_TOKENS_PER_EXPERT_FP4_MOE", "VLLM_KV_CACHE_LAYOUT", "VLLM_FLASHINFER_FORCE_TENSOR_CORES"),
        *("max-num-batched-tokens", "long-prefill-token-threshold", "return-tokens-as-token-ids", "tokenizer-mode"),
        *(
            "ssl-keyfile",
            "kv-cache-dtype",
            "compilation-config.pass_config.enable_fusion",
            "enable-prompt-tokens-details",
        ),
        # SGLang: environ.py and server_args.py
        *("SGLANG_INIT_NEW_TOKEN_RATIO", "SGLANG_NEW_TOKEN_RATIO_DECAY_STEPS", "SGLANG_CLIP_MAX_NEW_TOKENS_ESTIMATION"),
        *("SGLANG_TEST_STUCK_DETOKENIZER", "speculative-token-map", "speculative-num-draft-tokens"),
        # Others
        *(
            "VLLM_TOKENIZER",
            "TOKENIZERS_PARALLELISM",
            "HF_TOKEN_PATH",
            "HF_HUB_DISABLE_IMPLICIT_TOKEN",
            "PWD",
            "tokenizer",
        ),
        *(
            "num_key_value_heads",
            "eos_token_id",
            "spec-tokens",
            "tokens-only",
            "MAX_BATCH_PREFILL_TOKENS",
            "max_num_tokens",
        ),
    ],
)
def test_names_of_what_engines_are_set_by_are_no_secrets(name: str) -> None:
    assert not secret_name(name)


def test_no_parameter_that_an_engine_module_writes_is_a_secret() -> None:
    for engine in ENGINES.values():
        for given in engine.parameters.values():
            words = (given if isinstance(given, str) else f"{given.words} {given.off or ''}").split()
            assert [word for word in words if secret_name(word)] == [], engine.name


def test_a_switch_is_no_secret_whatever_it_is_called() -> None:
    assert not secret_name("SGLANG_LOG_DECODE_GRAPH_KEY", "true")  # SGLang: environ.py
    assert secret_name("SGLANG_LOG_DECODE_GRAPH_KEY", "sk-1234567")
    assert secret_name("DB_PASSWORD", "12345")
