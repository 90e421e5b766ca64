"""``transformers serve``. Flags as of 5.23.0; its streams were recorded for real."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from pytest_llmperf.engines.engine import Engine
from pytest_llmperf.engines.models import find_weights
from pytest_llmperf.engines.parameters import Flag, arguments
from pytest_llmperf.plan import ServerSpec

__all__ = ["TRANSFORMERS"]

_PARAMETERS: Final[Mapping[str, str | Flag]] = {
    "gpu_memory_utilization": "--cb-max-memory-percent",
    "block_size": "--cb-block-size",
    "max_num_batched_tokens": "--cb-max-batch-tokens",
    "quantization": "--quantization",
}


def _command(spec: ServerSpec, port: int, model: str) -> list[str]:
    return [
        *("transformers", "serve", model, "--host", "127.0.0.1", "--port", str(port)),
        *("--continuous-batching", "--default-seed", "0"),
        *arguments(_PARAMETERS, spec),
        *spec.extra_args,
    ]


# It tells neither its version nor its configuration, has no metrics and refuses fields that it does not know: no
# request extras. Its list of models is that of the hub's cache, or an error where there is none.
TRANSFORMERS: Final = Engine(
    name="transformers",
    title="transformers serve",
    parameters=_PARAMETERS,
    default_port=8000,
    cpu=False,
    command=_command,
    distribution="transformers",
    companions=("transformers[serving]", "torch"),
    program="transformers",
    find_model=find_weights,
    cache_env=("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR"),
    lists_models=False,
    evidence="run for real",
)
