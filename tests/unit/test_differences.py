"""Every rule by which two identities differ, each on the smallest pair that shows it."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_llmperf.differences import differences, with_test, workload_digest
from pytest_llmperf.identity import Fact, Identity
from pytest_llmperf.plan import LoadProfile, Plan, ServerSpec, Sla, Workload

UNKNOWN = "unknown"


def identity(**facts: str) -> Identity:
    """Facts by class: ``e_`` marks environment, ``c_`` consequence; ``__`` stands for ``.--``."""
    classes: dict[str, dict[str, Fact]] = {"input": {}, "environment": {}, "consequence": {}}
    for written, value in facts.items():
        kind = {"e_": "environment", "c_": "consequence"}.get(written[:2], "input")
        name = (written[2:] if kind != "input" else written).replace("__", ".--").replace("env_", "env.")
        classes[kind][name] = Fact(value=value, source="unknown" if value == UNKNOWN else "live")
    return Identity(**classes)


def roles(
    baseline: Identity, candidate: Identity, *declared: str, stored: bool = False, allowed: tuple[str, ...] = ()
) -> dict[str, str]:
    found = differences(baseline, candidate, declared, stored=stored, allowed=allowed)
    assert len({each.name for each in found}) == len(found)
    return {each.name: each.role for each in found}


def test_equal_identities_have_no_difference_wherever_they_were_learnt() -> None:
    one = Identity(input={"quantization": Fact(value="fp8", source="declared")})
    two = Identity(input={"quantization": Fact(value="fp8", source="live")})
    assert differences(one, two, ("version",), stored=False) == ()


def test_the_declared_variable_is_declared_and_any_other_input_confounds() -> None:
    one = identity(version="1", max_num_seqs="4", model="m")
    two = identity(version="2", max_num_seqs="8", model="m")
    assert roles(one, two, "version") == {"version": "declared", "max_num_seqs": "confounding"}
    assert roles(one, two, "version", "max_num_seqs") == {"version": "declared", "max_num_seqs": "declared"}
    assert roles(one, two) == {"version": "confounding", "max_num_seqs": "confounding"}
    assert roles(one, two, "version", allowed=("max_num_seqs",)) == {"version": "declared", "max_num_seqs": "declared"}


def test_flags_are_compared_one_by_one_and_a_missing_one_is_not_set() -> None:
    one, two = identity(args__a="1", args__b="set"), identity(args__a="2", args__c="set")
    found = {each.name: (each.baseline, each.candidate, each.role) for each in differences(one, two, (), stored=False)}
    assert found == {
        "args.--a": ("1", "2", "confounding"),
        "args.--b": ("set", "not set", "confounding"),
        "args.--c": ("not set", "set", "confounding"),
    }
    assert roles(one, two, "args.--a", allowed=("args.--b",)) == {
        "args.--a": "declared",
        "args.--b": "declared",
        "args.--c": "confounding",
    }


def test_environment_variables_are_compared_one_by_one() -> None:
    one, two = identity(env_A="1", env_B="2"), identity(env_A="1", env_C="3")
    assert roles(one, two, "env.B") == {"env.B": "declared", "env.C": "confounding"}


def test_flags_of_a_server_that_tells_none_are_one_unknown() -> None:
    silent, plain = identity(args=UNKNOWN), identity()
    (found,) = differences(identity(args__a="1", args__b="set"), silent, (), stored=False)
    assert (found.name, found.baseline, found.candidate, found.role) == (
        "args",
        "--a=1 --b",
        UNKNOWN,
        "confounding",
    )
    assert found.note == "the candidate does not tell it"
    assert roles(silent, plain) == {"args": "confounding"}
    assert roles(silent, plain, allowed=("args",)) == {"args": "declared"}
    assert roles(silent, silent) == {"args": "unverified"}
    assert roles(identity(env=UNKNOWN), identity(env_A="1")) == {"env": "confounding"}


def test_unknown_on_both_sides_is_a_note_and_known_against_unknown_confounds() -> None:
    one, two = identity(quantization=UNKNOWN, version="1"), identity(quantization=UNKNOWN, version="1")
    (found,) = differences(one, two, (), stored=False)
    assert (found.role, found.note) == ("unverified", "neither side tells it: not verified to be the same")
    assert roles(one, identity(quantization="fp8", version="1")) == {"quantization": "confounding"}
    assert roles(identity(version="1"), identity(quantization="fp8", version="1")) == {"quantization": "confounding"}
    assert roles(one, identity(quantization="fp8", version="1"), "quantization") == {"quantization": "declared"}


@pytest.mark.parametrize("name", ["driver", "host", "system", "pool"])
def test_another_driver_or_host_escalates_only_against_a_stored_baseline(name: str) -> None:
    one, two = identity(**{f"e_{name}": "1"}), identity(**{f"e_{name}": "2"})
    assert roles(one, two, stored=True) == {name: "escalating"}
    assert roles(one, identity(), stored=True) == {name: "escalating"}
    assert roles(one, two, stored=False) == {name: "confounding"}
    assert roles(one, two, stored=True, allowed=(name,)) == {name: "declared"}


@pytest.mark.parametrize("name", ["gpu", "gpu_count", "gpu_memory", "mig", "workload"])
@pytest.mark.parametrize("stored", [True, False])
def test_another_gpu_or_load_confounds_in_every_mode(name: str, stored: bool) -> None:
    one, two = identity(**{f"e_{name}": "1"}), identity(**{f"e_{name}": "2"})
    assert roles(one, two, stored=stored) == {name: "confounding"}
    assert roles(one, identity(), stored=stored) == {name: "confounding"}
    assert roles(identity(), identity(), stored=stored) == {}


def test_consequences_come_with_it_and_name_the_comparison_that_isolates_them() -> None:
    one = identity(c_n_ctx="1024", c_block_size="16", c_torch="2.9", c_num_gpu_blocks="100", c_same="x")
    two = identity(c_n_ctx="2048", c_block_size="32", c_torch="2.10", c_num_gpu_blocks="90", c_same="x")
    found = {each.name: each for each in differences(one, two, ("version",), stored=False)}
    assert {each.role for each in found.values()} == {"came_with"}
    assert {name: each.note for name, each in found.items()} == {
        "n_ctx": "to see it alone: pytest --llmperf --llmperf-ab max_model_len=2048",
        "block_size": "to see it alone: pytest --llmperf --llmperf-ab block_size=32",
        "torch": None,
        "num_gpu_blocks": None,
    }
    # The variable itself needs no other comparison to be seen alone, and what is not known can't be set.
    assert {each.note for each in differences(one, two, ("max_model_len", "block_size"), stored=False)} == {None}
    (gone,) = differences(identity(c_n_ctx="1024"), identity(), ("version",), stored=False)
    assert (gone.candidate, gone.role, gone.note) == (UNKNOWN, "came_with", None)


def test_a_consequence_that_repeats_its_input_is_not_listed_twice() -> None:
    one, two = (
        identity(max_model_len="256", c_max_model_len="256"),
        identity(max_model_len="512", c_max_model_len="512"),
    )
    assert roles(one, two, "max_model_len") == {"max_model_len": "declared"}
    clipped = identity(max_model_len="512", c_max_model_len="500")
    found = differences(one, clipped, ("max_model_len",), stored=False)
    assert [(each.kind, each.candidate) for each in found] == [("input", "512"), ("consequence", "500")]


@pytest.mark.parametrize("whole", ["server", "url"])
def test_of_whole_servers_one_input_may_differ_and_further_ones_must_be_allowed(whole: str) -> None:
    one, two = identity(version="1", threads="1", model="m"), identity(version="2", threads="2", model="m")
    assert roles(one, identity(version="2", threads="1", model="m"), whole) == {"version": "declared"}
    assert roles(one, two, whole) == {"version": "confounding", "threads": "confounding"}
    assert roles(one, two, whole, allowed=("threads",)) == {"threads": "declared", "version": "declared"}
    assert roles(one, identity(version=UNKNOWN, threads="1", model="m"), whole) == {"version": "confounding"}
    moved = identity(version="1", threads="1", model="m", e_gpu="H200")
    assert roles(one, moved, whole) == {"gpu": "confounding"}


def test_the_weightiest_roles_come_first() -> None:
    one = identity(version="1", threads="1", e_host="a", c_slots="1", quantization=UNKNOWN)
    two = identity(version="2", threads="2", e_host="b", c_slots="2", quantization=UNKNOWN)
    assert list(roles(one, two, "version", stored=True).values()) == [
        "declared", "confounding", "escalating", "came_with", "unverified",
    ]  # fmt: skip


def plan(tmp_path: Path, **fields: object) -> Plan:
    given = {
        "nodeid": "test_a.py::test_a",
        "server": ServerSpec(name="s", engine="embedded"),
        "workload": Workload.model_validate({"name": "chat", "input": 10, "output": 5}),
        "load": LoadProfile.model_validate({"concurrency": 2, "requests": 10}),
        **fields,
    }
    return Plan.model_validate(given)


def test_a_tests_load_joins_the_environment(tmp_path: Path) -> None:
    found = with_test(identity(e_gpu="cpu"), plan(tmp_path))
    assert {name: fact.value for name, fact in found.environment.items()} == {
        "gpu": "cpu",
        "workload": workload_digest(plan(tmp_path)),
    }
    assert found.digest() == identity(e_gpu="cpu").digest()


def test_a_limit_that_is_added_later_leaves_a_test_comparable(tmp_path: Path) -> None:
    sla = Sla(metric="ttft_p95", limit=0.5, written="500 ms")
    before, after = with_test(identity(), plan(tmp_path)), with_test(identity(), plan(tmp_path, slas=(sla,)))
    assert roles(before, after, stored=True) == {}


def test_the_workload_digest_follows_the_load_and_not_its_names(tmp_path: Path) -> None:
    base = workload_digest(plan(tmp_path))
    assert len(base) == 16
    renamed = Workload.model_validate({"name": "other", "input": 10, "output": 5})
    assert workload_digest(plan(tmp_path, nodeid="b", workload=renamed, replays=3)) == base
    longer = Workload.model_validate({"name": "chat", "input": 11, "output": 5})
    assert workload_digest(plan(tmp_path, workload=longer)) != base
    assert workload_digest(plan(tmp_path, seed=1)) != base
    assert workload_digest(plan(tmp_path, load=LoadProfile.model_validate({"concurrency": 3, "requests": 10}))) != base


def test_the_workload_digest_follows_the_content_of_a_file_and_not_its_place(tmp_path: Path) -> None:
    def digest(folder: str, text: str) -> str:
        (tmp_path / folder).mkdir(exist_ok=True)
        path = tmp_path / folder / "trace.csv"
        path.write_text(text)
        table = {"name": "w", "trace": str(path)}
        return workload_digest(plan(tmp_path, workload=Workload.model_validate(table)))

    rows = "Timestamp,Request tokens,Response tokens\n1,5,5\n"
    assert digest("here", rows) == digest("there", rows)
    assert digest("here", rows) != digest("here", rows + "2,5,5\n")
