"""The engines: constants of type ``Engine`` in one explicit dict, which users' own are added to."""

from __future__ import annotations

from typing import Final

from pytest_llmperf.engines.embedded import EMBEDDED
from pytest_llmperf.engines.engine import Engine
from pytest_llmperf.engines.llamacpp import LLAMACPP
from pytest_llmperf.engines.lmdeploy import LMDEPLOY
from pytest_llmperf.engines.ollama import OLLAMA
from pytest_llmperf.engines.openai import OPENAI
from pytest_llmperf.engines.sglang import SGLANG
from pytest_llmperf.engines.tgi import TGI
from pytest_llmperf.engines.transformers import TRANSFORMERS
from pytest_llmperf.engines.triton import TRITON
from pytest_llmperf.engines.trtllm import TRTLLM
from pytest_llmperf.engines.vllm import VLLM

__all__ = ["ENGINES"]

ENGINES: Final[dict[str, Engine]] = {
    engine.name: engine
    for engine in (
        LLAMACPP,
        EMBEDDED,
        VLLM,
        SGLANG,
        TRTLLM,
        TGI,
        LMDEPLOY,
        TRANSFORMERS,
        OLLAMA,
        TRITON,
        OPENAI,
    )
}
"""In the order in which a running server is compared with them: the embedded engine, found running, is llama.cpp, and
SGLang answers some of Ollama's paths."""
