"""Invented texts and weights make no numbers where speed hangs on them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pytest_llmperf.identity import Fact, Identity
from pytest_llmperf.plan import Workload
from pytest_llmperf.synthetic import synthetic_fault

INVENTED = Workload.model_validate({"name": "w", "input": 24, "output": 8})


@pytest.fixture
def real(tmp_path: Path) -> Workload:
    file = tmp_path / "d.jsonl"
    file.write_text('{"prompt": "Why is the sky blue?", "output_tokens": 8}\n')
    return Workload.model_validate({"name": "w", "dataset": str(file)}, context={"folders": (tmp_path,)})


def identity(inputs: dict[str, str], **told: str) -> Identity:
    facts: Any = {name: Fact(value=value, source="configured") for name, value in inputs.items()}
    return Identity(input=facts, consequence={name: Fact(value=value, source="live") for name, value in told.items()})


@pytest.mark.parametrize(
    ("inputs", "told"),
    [
        ({"args.--speculative-config": '{"method": "ngram", "num_speculative_tokens": 4}'}, {}),
        ({"args.-sc": '{"method": "eagle"}'}, {}),
        ({"args.--spec-model": "org/draft"}, {}),
        ({"args.--speculative-algorithm": "EAGLE3"}, {}),
        ({"args.--speculate": "4"}, {}),
        ({"args.-md": "draft.gguf"}, {}),
        ({}, {"speculative": "mtp"}),
    ],
)
def test_drafts_are_worth_nothing_on_invented_prompts(
    inputs: dict[str, str], told: dict[str, str], real: Workload
) -> None:
    fault = synthetic_fault(INVENTED, identity(inputs, **told))
    assert fault is not None
    assert fault.startswith("speculative decoding with invented prompts: how many drafts are accepted is an accident")
    assert synthetic_fault(real, identity(inputs, **told)) is None


@pytest.mark.parametrize(
    ("inputs", "told"),
    [
        ({"args.--speculative-config": '{"method": "eagle", "synthetic_acceptance_length": 2.5}'}, {}),
        ({"args.--speculative-config.synthetic_acceptance_rates": "[0.8, 0.6]", "args.--spec-method": "eagle"}, {}),
        ({"args.--speculative-algorithm": "EAGLE", "env.SGLANG_SIMULATE_ACC_LEN": "2.5"}, {}),
        ({}, {"speculative": "eagle", "synthetic_acceptance": "[0.8, 0.6]"}),
        ({"args.--speculate": "0"}, {}),
        ({"args.--spec-type": "none"}, {}),
        ({}, {}),
    ],
)
def test_a_set_acceptance_is_no_accident(inputs: dict[str, str], told: dict[str, str]) -> None:
    assert synthetic_fault(INVENTED, identity(inputs, **told)) is None


def test_an_acceptance_that_is_switched_off_is_not_set() -> None:
    off = {"args.--speculative-algorithm": "EAGLE", "env.SGLANG_SIMULATE_ACC_LEN": "-1"}
    assert synthetic_fault(INVENTED, identity(off)) is not None


def test_invented_weights_route_at_random(real: Workload) -> None:
    dummy = {"args.--load-format": "dummy"}
    fault = synthetic_fault(real, identity(dummy, experts="128"))
    assert fault is not None
    assert fault.startswith("invented weights in a mixture of 128 experts")
    assert synthetic_fault(real, identity({}, experts="128", load_format="dummy")) is not None
    assert synthetic_fault(real, identity({"args.--empty-init": "set"}, experts="8")) is not None
    assert synthetic_fault(real, identity({}, experts="128")) is None, "the weights are real"
    assert synthetic_fault(real, identity(dummy)) is None, "no mixture of experts"
    even = ("VLLM_MOE_ROUTING_SIMULATION_STRATEGY", "uniform_random"), ("SGLANG_SIMULATE_UNIFORM_EXPERTS", "1")
    for name, value in even:
        assert synthetic_fault(real, identity({**dummy, f"env.{name}": value}, experts="128")) is None
    assert synthetic_fault(real, identity({**dummy, f"env.{even[1][0]}": "0"}, experts="128")) is not None
    # vLLM's other strategy draws experts from a normal distribution; one that a user registers may do anything.
    for uneven in ("normal_routing", "mine", "1"):
        assert synthetic_fault(real, identity({**dummy, f"env.{even[0][0]}": uneven}, experts="128")) is not None
    assert synthetic_fault(real, identity({**dummy, f"env.{even[0][0]}": "Uniform_Random"}, experts="128")) is None
