"""The page of metrics fetched beside a load: from a server whose pages and faults are scripted."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from waiting import within

from pytest_llmperf.engines.engine import Engine
from pytest_llmperf.plan import ServerSpec
from pytest_llmperf.records import Endpoint
from pytest_llmperf.telemetry.recorder import Sources, record
from pytest_llmperf.telemetry.scraper import Scraper

ENGINE = Engine(
    name="scripted", title="the scripted engine", parameters={}, default_port=1, cpu=True, metrics_url="/metrics",
    series={"requests": ("done_total",), "running": ("running",)},
)  # fmt: skip
Answer = Callable[[BaseHTTPRequestHandler, int], None]


class Scripted(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False

    def __init__(self, answer: Answer) -> None:
        self.asked: list[tuple[str, str | None]] = []
        self.over = threading.Event()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                outer.asked.append((self.path, self.headers["authorization"]))
                answer(self, len(outer.asked))

            def log_message(self, *arguments: object) -> None:
                return

        super().__init__(("127.0.0.1", 0), Handler)

    @property
    def endpoint(self) -> Endpoint:
        port = self.server_address[1]
        return Endpoint(
            f"http://127.0.0.1:{port}", "127.0.0.1", port, False, "m", "scripted", {"Authorization": "Bearer k"}
        )


def page(handler: BaseHTTPRequestHandler, text: bytes, status: int = 200) -> None:
    handler.send_response(status)
    handler.send_header("content-length", str(len(text)))
    handler.end_headers()
    handler.wfile.write(text)


def counting(handler: BaseHTTPRequestHandler, number: int) -> None:
    page(handler, f"# TYPE done_total counter\ndone_total {number}\nrunning 2\nother 5\n".encode())


@contextmanager
def serving(answer: Answer) -> Iterator[Scripted]:
    with Scripted(answer) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield server
        finally:
            server.over.set()
            server.shutdown()
            thread.join()


def test_the_page_is_read_on_entry_on_exit_and_between() -> None:
    with serving(counting) as server:
        began = time.monotonic_ns()
        with record(None, sources=Sources(page=Scraper(ENGINE, server.endpoint, interval_s=0.05))) as recorder:
            assert within(30, lambda: len(server.asked) >= 3)
        ended = time.monotonic_ns()
    samples = recorder.telemetry.engine
    assert len(samples) >= 4
    assert [sample.values for sample in samples] == [{"requests": n + 1, "running": 2} for n in range(len(samples))]
    stamps = [sample.t_ns for sample in samples]
    assert began < stamps[0] < stamps[-1] < ended
    assert stamps == sorted(stamps)
    assert set(server.asked) == {("/metrics", "Bearer k")}
    # Without its colon it is a note of gaps, which a busy machine adds.
    assert not any(note.startswith("the engine's metrics:") for note in recorder.telemetry.notes)
    assert not reading()


def test_series_of_the_model_that_is_loaded_are_told_from_those_of_others() -> None:
    def shared(handler: BaseHTTPRequestHandler, number: int) -> None:
        page(handler, f'done_total{{model="m"}} {number}\ndone_total{{model="other"}} 100\n'.encode())

    several = replace(ENGINE, series={"requests": ("done_total{model=}",)})
    with serving(shared) as server:
        with Scraper(several, server.endpoint, interval_s=60) as scraper:
            pass
        assert [sample.values["requests"] for sample in scraper.samples()] == [1, 2]


def test_an_empty_load_has_its_two_pages() -> None:
    with serving(counting) as server:
        with record(None, sources=Sources(page=Scraper(ENGINE, server.endpoint, interval_s=60))) as recorder:
            pass
        assert [sample.values["requests"] for sample in recorder.telemetry.engine] == [1, 2]


def test_a_page_on_another_port_is_asked_without_the_key() -> None:
    with serving(counting) as metrics, serving(counting) as api:
        elsewhere = replace(ENGINE, metrics_url=f":{metrics.server_address[1]}/stats/prometheus")
        prefixed = replace(api.endpoint, base_url=f"{api.endpoint.base_url}/v2")
        with Scraper(elsewhere, prefixed, interval_s=60) as scraper:
            pass
        assert metrics.asked == [("/stats/prometheus", None)] * 2
        assert api.asked == []
    assert len(scraper.samples()) == 2


def test_an_engine_without_a_page_is_not_asked() -> None:
    endpoint = Endpoint("http://127.0.0.1:1", "127.0.0.1", 1, False, "m", "scripted")
    spec = ServerSpec(name="s", engine="scripted", url="http://127.0.0.1:1")
    assert Scraper.of(replace(ENGINE, metrics_url=None), endpoint, spec) is None
    assert Scraper.of(replace(ENGINE, series={}), endpoint, spec) is None
    assert Scraper.of(ENGINE, endpoint, spec) is not None


def test_pages_of_the_processes_of_one_server_are_one_sample() -> None:
    with serving(counting) as first, serving(counting) as second:
        urls = [f"http://127.0.0.1:{server.server_address[1]}/metrics" for server in (first, second)]
        with Scraper(ENGINE, first.endpoint, urls=urls, interval_s=60) as scraper:
            pass
        assert (first.asked, second.asked) == ([("/metrics", "Bearer k")] * 2, [("/metrics", None)] * 2)
    assert [sample.values for sample in scraper.samples()] == [{"requests": n, "running": 4} for n in (2, 4)]


def hangs(handler: BaseHTTPRequestHandler, number: int) -> None:
    handler.server.over.wait(60)  # type: ignore[attr-defined]
    handler.close_connection = True


def trickles(handler: BaseHTTPRequestHandler, number: int) -> None:
    handler.send_response(200)
    handler.end_headers()
    while not handler.server.over.wait(0.02):  # type: ignore[attr-defined]
        handler.wfile.write(b"done_total 1\n")


def floods(handler: BaseHTTPRequestHandler, number: int) -> None:
    handler.send_response(200)
    handler.end_headers()
    for _ in range(50):  # three times what is read at most
        handler.wfile.write(b"done_total 1\n" * 80_000)


def breaks_off(handler: BaseHTTPRequestHandler, number: int) -> None:
    handler.send_response(200)
    handler.send_header("content-length", "1000")
    handler.end_headers()
    handler.wfile.write(b"done_total 1\n")
    handler.close_connection = True


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize(
    ("answer", "timeout_s", "said"),
    [
        (hangs, 0.3, "no answer within 0.3 s"),
        (trickles, 1, "the answer is not complete within 1 s"),
        (floods, 60, "the answer is not complete within 16 MiB"),
        (breaks_off, 60, "what answers is not HTTP"),
        (lambda handler, _: page(handler, b"no", 404), 60, "HTTP 404"),
        (lambda handler, _: page(handler, b"no", 401), 60, "HTTP 401"),
        (lambda handler, _: page(handler, b"done_total 12"), 60, "the page ends in the middle of a line"),
        (lambda handler, _: page(handler, b"<html>\n" * 100), 60, "/metrics has none of the series that we know"),
        (lambda handler, _: page(handler, bytes(range(256)) + b"\n"), 60, "has none of the series that we know"),
    ],
)
def test_a_page_that_fails_is_a_note_and_never_an_error(answer: Answer, timeout_s: float, said: str) -> None:
    with (
        serving(answer) as server,
        record(
            None, sources=Sources(page=Scraper(ENGINE, server.endpoint, interval_s=600, timeout_s=timeout_s))
        ) as recorder,
    ):
        pass
    assert recorder.telemetry.engine == ()
    # Without its colon it is a note of gaps, which a busy machine adds.
    assert [said in note for note in recorder.telemetry.notes if note.startswith("the engine's metrics:")] == [True]


def reading() -> bool:
    return any(thread.name == "llmperf-metrics" for thread in threading.enumerate())


def test_a_page_that_keeps_failing_is_given_up() -> None:
    with serving(lambda handler, _: page(handler, b"", 503)) as server:
        with Scraper(ENGINE, server.endpoint, interval_s=0.01) as scraper:
            assert within(30, lambda: not reading())
        assert len(server.asked) == 3
    [note] = scraper.notes()
    assert note.endswith("HTTP 503 (3 times); it was not asked again")


def test_a_page_that_fails_for_a_while_leaves_the_others_and_a_gap() -> None:
    def answer(handler: BaseHTTPRequestHandler, number: int) -> None:
        if number in (3, 5):
            time.sleep(0.2)
            page(handler, b"", 500)
        else:
            counting(handler, number)

    with serving(answer) as server, Scraper(ENGINE, server.endpoint, interval_s=0.02) as scraper:
        assert within(60, lambda: len(server.asked) >= 7)
    read = [sample.values["requests"] for sample in scraper.samples()]
    assert read[:4] == [1, 2, 4, 6]
    failed, late = scraper.notes()
    assert failed.endswith("HTTP 500 (2 times)")
    assert late.startswith("the engine's metrics have ")


def test_a_slow_page_delays_no_other_sample() -> None:
    def answer(handler: BaseHTTPRequestHandler, number: int) -> None:
        (counting if number == 1 else hangs)(handler, number)

    with serving(answer) as server:
        page = Scraper(ENGINE, server.endpoint, interval_s=0.02, timeout_s=60)
        with record(os.getpid(), interval_s=0.02, sources=Sources(page=page)) as recorder:
            assert within(30, lambda: len(server.asked) == 2)  # after the first page, that the load waited for
            before = len(recorder.telemetry.host)
            assert within(15, lambda: len(recorder.telemetry.host) > before + 5)
            assert len(server.asked) == 2
            server.over.set()


def test_a_port_that_nothing_listens_on_is_said() -> None:
    endpoint = Endpoint("http://127.0.0.1:1", "127.0.0.1", 1, False, "m", "scripted")
    with Scraper(ENGINE, endpoint) as scraper:
        pass
    assert len(scraper.notes()) == 1
    assert scraper.samples() == ()


def test_a_page_that_hangs_is_waited_for_at_entry_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """The client's own limit is out of reach here: what ends the wait is ours."""
    over = threading.Event()
    monkeypatch.setattr("pytest_llmperf.telemetry.scraper._MORE_S", 0.05)
    monkeypatch.setattr("pytest_llmperf.telemetry.scraper.fetch", lambda *_: over.wait(60))
    try:
        with Scraper(ENGINE, Endpoint("http://h", "h", 1, False, "m", "e"), timeout_s=0.1) as scraper:
            pass
        assert (scraper.samples(), scraper.notes()) == ((), ("the engine's metrics: no answer within 0.1 s",))
    finally:
        over.set()
