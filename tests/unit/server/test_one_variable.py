"""Two live servers of one A/B: what was meant to differ is found to differ, and nothing else."""

from __future__ import annotations

from pathlib import Path

from pytest_llmperf.differences import Difference, differences
from pytest_llmperf.plan import ServerSpec
from pytest_llmperf.server.launch import launch
from pytest_llmperf.settings import Overrides, Settings
from pytest_llmperf.variables import parse_ab

BASE = {"engine": "embedded", "max_num_seqs": 1, "max_model_len": 256}
SETTINGS = Settings.model_validate(
    {
        "source": "llmperf.toml",
        "servers": {
            "base": BASE,
            "one": {**BASE, "enable_prefix_caching": False},
            "two": {**BASE, "enable_prefix_caching": False, "extra_args": ["--ubatch-size", "256"]},
        },
    }
)


def seen(written: str, folder: Path, *, allowed: tuple[str, ...] = ()) -> dict[str, Difference]:
    arms = parse_ab(written, ServerSpec.model_validate({"name": "base", **BASE}), SETTINGS, Overrides())
    with launch(arms.baseline, log_dir=folder) as ours, launch(arms.candidate, log_dir=folder) as theirs:
        found = differences(ours.identity, theirs.identity, arms.declared, stored=False, allowed=allowed)
    return {each.name: each for each in found}


def test_one_changed_parameter_is_the_only_difference(tmp_path: Path) -> None:
    assert {name: each.role for name, each in seen("enable_prefix_caching=false", tmp_path).items()} == {
        "enable_prefix_caching": "declared"
    }


def test_what_a_parameter_brings_with_it_is_listed(tmp_path: Path) -> None:
    found = seen("max_model_len=512", tmp_path)
    declared = [
        (each.name, each.kind, each.baseline, each.candidate) for each in found.values() if each.role != "came_with"
    ]
    assert declared == [("max_model_len", "input", "256", "512")]
    assert (found["n_ctx"].role, found["n_ctx"].candidate, found["n_ctx"].note) == ("came_with", "512", None)


def test_of_another_server_two_changed_inputs_confound_until_one_is_allowed(tmp_path: Path) -> None:
    assert {name: each.role for name, each in seen("server=one", tmp_path).items()} == {
        "enable_prefix_caching": "declared"
    }
    both = seen("server=two", tmp_path)
    assert {name: each.role for name, each in both.items()} == {
        "enable_prefix_caching": "confounding",
        "args.--ubatch-size": "confounding",
    }
    allowed = seen("server=two", tmp_path, allowed=("args.--ubatch-size",))
    assert {each.role for each in allowed.values()} == {"declared"}
