"""Loads whose speed depends on what the texts or the weights are, measured with invented ones.

Drafts of speculative decoding are accepted as often as the text can be guessed, and a router sends tokens to experts as
it has learnt to. With texts or weights that mean nothing both are accidents, and so are the numbers; unless the engine
is told to take a set share of drafts, or to route evenly.
"""

from __future__ import annotations

from typing import Final

from pytest_llmperf.identity import Identity
from pytest_llmperf.plan import Workload

__all__ = ["synthetic_fault"]

_OFF: Final = ("", "0", "none", "false", "unknown", "default")
_DRAFTING: Final = ("-sc", "-md", "--model-draft")
"""Flags for it that do not begin with ``--spec``."""
_SET_ACCEPTANCE: Final = "env.SGLANG_SIMULATE_ACC_LEN"
_STRATEGY: Final = "env.VLLM_MOE_ROUTING_SIMULATION_STRATEGY"
_EVEN_STRATEGY: Final = "uniform_random"
"""The only one of vLLM 0.20's own that is even; ``normal_routing`` prefers some, what users register is not known
(``fused_moe/router/routing_simulator_router.py``). vLLM takes it in any case of letters (``envs.py``)."""
_EVEN_ROUTING: Final = ("env.SGLANG_SIMULATE_UNIFORM_EXPERTS", "env.SGLANG_SIMULATE_ROUND_ROBIN_EXPERTS")
"""Switches of SGLang 0.5.23 (``environ.py``)."""


def synthetic_fault(workload: Workload, identity: Identity) -> str | None:
    """Why numbers of this server under this load say nothing; None where nothing speaks against them.

    ``identity`` is that of the live server: what it was started with, and what it tells.
    """
    if workload.dataset is None and _speculates(identity) and not _acceptance_set(identity):
        return (
            "speculative decoding with invented prompts: how many drafts are accepted is an accident of the text; give "
            "a dataset of real texts, or set the acceptance (vLLM: synthetic_acceptance_rates or "
            "synthetic_acceptance_length in --speculative-config; SGLang: SGLANG_SIMULATE_ACC_LEN)"
        )
    experts = identity.value("experts")
    if _is_set(experts) and _dummy(identity) and not _routed_evenly(identity):
        return (
            f"invented weights in a mixture of {experts} experts: which of them compute is an accident; give the real "
            "weights, or have tokens routed evenly (vLLM: VLLM_MOE_ROUTING_SIMULATION_STRATEGY=uniform_random; SGLang: "
            "SGLANG_SIMULATE_UNIFORM_EXPERTS=1)"
        )
    return None


def _speculates(identity: Identity) -> bool:
    return _is_set(identity.value("speculative")) or any(_is_set(value) for value in _drafting(identity).values())


def _acceptance_set(identity: Identity) -> bool:
    if _is_set(identity.value("synthetic_acceptance")) or _is_set(identity.value(_SET_ACCEPTANCE)):
        return True
    return any("synthetic_acceptance_" in f"{name} {value}" for name, value in _drafting(identity).items())


def _routed_evenly(identity: Identity) -> bool:
    if identity.value(_STRATEGY).lower() == _EVEN_STRATEGY:
        return True
    return any(_is_set(identity.value(name)) for name in _EVEN_ROUTING)


def _dummy(identity: Identity) -> bool:
    loaded = (identity.value("load_format"), identity.value("args.--load-format"))
    return "dummy" in loaded or _is_set(identity.value("args.--empty-init"))


def _drafting(identity: Identity) -> dict[str, str]:
    """Flags that are about speculative decoding → their values."""
    flags = {name.partition(".")[2]: fact.value for name, fact in identity.input.items() if name.startswith("args.")}
    return {flag: value for flag, value in flags.items() if flag.startswith("--spec") or flag in _DRAFTING}


def _is_set(value: str) -> bool:
    return value.lower() not in _OFF and not value.startswith("-")
