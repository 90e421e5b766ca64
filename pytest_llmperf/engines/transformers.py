"""``transformers serve``. Flags as of 5.23.0 (``cli/serve.py``); its streams were recorded for real."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from pytest_llmperf.engines.engine import Engine
from pytest_llmperf.engines.flags import flags_of
from pytest_llmperf.engines.models import find_weights
from pytest_llmperf.engines.parameters import Flag, arguments
from pytest_llmperf.plan import ServerSpec

__all__ = ["TRANSFORMERS"]

_CAP: Final = "--cb-max-memory-percent"
_SHARE: Final = 0.5
"""Where nothing is said. Its own default depends on device and request, and leaves a host too little: 14 of 24 GB were
seen taken."""
_PARAMETERS: Final[Mapping[str, str | Flag]] = {
    "gpu_memory_utilization": _CAP,
    # The configuration calls it page_size since 5.17 and warns of this name, which is the only one of the flag.
    "block_size": "--cb-block-size",
    "max_num_batched_tokens": "--cb-max-batch-tokens",
    "quantization": Flag("--quantization", dtype="--dtype"),
}


def _command(spec: ServerSpec, port: int, model: str) -> list[str]:
    if _CAP not in flags_of(spec.extra_args):
        spec = spec.model_copy(update={"gpu_memory_utilization": _memory_share(spec)})
    return [
        *("transformers", "serve", model, "--host", "127.0.0.1", "--port", str(port)),
        *("--continuous-batching", "--default-seed", "0"),
        *arguments(_PARAMETERS, spec),
        *spec.extra_args,
    ]


def _memory_share(spec: ServerSpec) -> float:
    """Of the whole memory, less what the server itself has taken before (``continuous_batching/cache.py``)."""
    return _SHARE if spec.gpu_memory_utilization is None else spec.gpu_memory_utilization


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
    memory_share=_memory_share,
    defaults={"gpu_memory_utilization": str(_SHARE)},
    cache_env=("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR"),
    lists_models=False,
    evidence="run for real",
)
