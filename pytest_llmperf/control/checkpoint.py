"""What the ``config.json`` of a model says, where its folder is on this machine."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from pytest_llmperf.engines.engine import mapping
from pytest_llmperf.engines.parameters import DTYPES

__all__ = ["CONFIG", "checkpoint_facts"]

CONFIG: Final = "config.json"
_EXPERTS: Final = ("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts")
"""As Mixtral and gpt-oss, Qwen, DeepSeek and Kimi, and ERNIE call them."""


def checkpoint_facts(folder: Path) -> dict[str, str]:
    """``quantization`` (or the weights' data type) and ``experts`` of the model in ``folder``, as far as it tells.

    ``experts`` is there for a mixture of experts only.
    """
    config = _config(folder / CONFIG)
    # The language model of a model for several media stands one level down.
    text = {**config, **mapping(config.get("text_config"))}
    method = mapping(text.get("quantization_config")).get("quant_method")
    dtype = DTYPES.get(str(text.get("dtype") or text.get("torch_dtype") or "").removeprefix("torch."))
    quantization = method.lower() if isinstance(method, str) and method else dtype
    experts = next((text[key] for key in _EXPERTS if isinstance(text.get(key), int) and text[key] > 1), None)
    return {
        **({"quantization": quantization} if quantization else {}),
        **({"experts": str(experts)} if experts is not None else {}),
    }


def _config(path: Path) -> Mapping[str, Any]:
    try:
        return mapping(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, RecursionError):
        return {}
