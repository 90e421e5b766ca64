"""Every way a request can fail has its own outcome, and none stops or spoils the run."""

from __future__ import annotations

import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from loading import check, endpoint, requests, run
from truth_server import TruthServer

from pytest_llmperf.errors import InfraError, TargetError
from pytest_llmperf.load.driver import Progress, Stop, begin, drive
from pytest_llmperf.load.request import PreparedRequest
from pytest_llmperf.load.tls import tls_context
from pytest_llmperf.plan import LoadProfile, TimeLimits
from pytest_llmperf.records import Endpoint, Outcome, Phase, RequestRecord

ONE = LoadProfile(concurrency=1, requests=1, warmup=0)
SHORT = TimeLimits(connect=0.3, first_token=0.25, no_progress=0.25, request=0.8, run=20)


@pytest.fixture(scope="module")
def server() -> Iterator[TruthServer]:
    with TruthServer(ttft=10, gap=5, n=8) as running:
        yield running


@pytest.mark.parametrize(
    ("directive", "outcome", "detail", "chunks"),
    [
        ("status=503", Outcome.HTTP_STATUS, "HTTP 503", 0),
        ("status=429 message=too_many", Outcome.HTTP_STATUS, "HTTP 429 Too Many Requests: too many", 0),
        ("error_after=3 message=oom", Outcome.STREAM_ERROR, "oom", 3),
        ("error_after=0 message=oom", Outcome.STREAM_ERROR, "oom", 0),
        ("cut_after=3", Outcome.CONNECTION_LOST, "ECONNRESET", 3),
        ("cut_after=-2", Outcome.CONNECTION_LOST, "before the first byte", 0),
        ("cut_after=-3", Outcome.CONNECTION_LOST, "header", 0),
        ("finish=0 done=0", Outcome.TRUNCATED, "neither", 8),
        ("finish=0 done=0 framing=close", Outcome.TRUNCATED, "neither", 8),
        ("raw=garbage", Outcome.PROTOCOL_ERROR, "not an HTTP/1.1 response", 0),
        ("raw=json", Outcome.PROTOCOL_ERROR, "not an event stream", 0),
        ("raw=endless", Outcome.PROTOCOL_ERROR, "exceeds", 0),
        ("stall_after=3", Outcome.NO_PROGRESS, "0.25 s", 3),
        ("stall_after=3 comment=20", Outcome.NO_PROGRESS, "0.25 s", 3),
        ("stall_after=0", Outcome.FIRST_TOKEN_TIMEOUT, "0.25 s", 0),
        ("stall_after=0 comment=20", Outcome.FIRST_TOKEN_TIMEOUT, "0.25 s", 0),
        ("n=100 gap=30", Outcome.DEADLINE, "0.8 s", None),
    ],
)
def test_failures_of_the_server(
    server: TruthServer, directive: str, outcome: Outcome, detail: str, chunks: int | None
) -> None:
    load = LoadProfile(concurrency=1, requests=3, warmup=0)
    limits = TimeLimits() if directive == "raw=endless" else SHORT
    result = run(server, load, directive=lambda index: directive if index == 1 else "", limits=limits)
    before, failed, after = result.records
    assert (failed.outcome, before.outcome, after.outcome) == (outcome, Outcome.OK, Outcome.OK), failed.detail
    assert detail in (failed.detail or "")
    if chunks is not None:
        assert len(failed.chunk_ns) == chunks
    assert failed.closed_ns is not None
    assert result.complete


def test_no_output_is_a_failure(server: TruthServer) -> None:
    load = LoadProfile(concurrency=1, requests=1, warmup=0)
    # the role chunk, the finish reason and [DONE] come, but no text: the server skips its output
    result = run(server, load, directive="n=-1")
    assert result.records[0].outcome is Outcome.NO_OUTPUT


def test_refused_connections_end_the_load_soon() -> None:
    with socket.create_server(("127.0.0.1", 0)) as reserved:
        port = reserved.getsockname()[1]
    target = endpoint_of(port)
    load = LoadProfile(concurrency=4, requests=1000, warmup=8)
    begun = time.monotonic()
    result = drive(target, requests(target, load), load, TimeLimits())
    check(result)
    assert {record.outcome for record in result.records} == {Outcome.CONNECT_FAILED}
    assert 20 <= len(result.records) <= 30
    assert "ECONNREFUSED" in (result.records[0].detail or "")
    assert all(record.sent_ns is None and record.connect_start_ns is not None for record in result.records)
    assert not result.complete
    assert "gave up" in result.warnings[0]
    assert time.monotonic() - begun > 0.1  # the slots waited in between


def test_refused_connections_in_open_loop() -> None:
    with socket.create_server(("127.0.0.1", 0)) as reserved:
        port = reserved.getsockname()[1]
    target = endpoint_of(port)
    load = LoadProfile(request_rate=100, requests=1000, warmup=2)
    result = drive(target, requests(target, load), load, TimeLimits())
    check(result)
    assert 20 <= len(result.records) <= 40
    assert all(record.scheduled_ns for record in result.records)
    assert not result.complete


@pytest.mark.parametrize(("late_s", "outcome"), [(0, Outcome.OK), (0.05, Outcome.CONNECTION_LOST)])
def test_only_a_close_as_the_request_leaves_is_tried_again(late_s: float, outcome: Outcome) -> None:
    """The server answers the first request, and drops the second one on the same connection: at once, or later."""
    event = b'data: {"choices": [{"delta": {"content": "a"}, "finish_reason": "stop"}]}\n\n'
    answer = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Length: %d\r\n\r\n" % len(event) + event

    def serve(listener: socket.socket) -> None:
        for number in range(2):
            try:
                peer, _ = listener.accept()
            except OSError:  # nobody came again
                return
            with peer:
                peer.recv(65536)
                peer.sendall(answer)
                if number == 0:
                    peer.recv(65536)
                    time.sleep(late_s)

    load = LoadProfile(concurrency=1, requests=2, warmup=0)
    for _ in range(1 if late_s else 5):  # on a busy machine "at once" may be too late
        with socket.create_server(("127.0.0.1", 0)) as listener:
            threading.Thread(target=serve, args=(listener,), daemon=True).start()
            target = endpoint_of(listener.getsockname()[1])
            result = drive(target, requests(target, load), load, TimeLimits())
        check(result)
        if result.client.retried:
            break
    assert [record.outcome for record in result.records] == [Outcome.OK, outcome]
    assert result.client.retried == (outcome is Outcome.OK)


def test_a_connection_that_never_opens_times_out() -> None:
    with socket.socket() as full:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        blockers = []
        for _ in range(4):  # fill the backlog: the kernel drops further SYNs
            blocker = socket.socket()
            blocker.setblocking(False)
            blocker.connect_ex(full.getsockname())
            blockers.append(blocker)
        target = endpoint_of(full.getsockname()[1])
        result = drive(target, requests(target, ONE), ONE, SHORT)
        for blocker in blockers:
            blocker.close()
    check(result)
    assert result.records[0].outcome is Outcome.CONNECT_TIMEOUT


def test_a_server_that_dies_fails_what_is_in_flight_and_ends_the_load() -> None:
    with TruthServer(ttft=10, gap=20, n=50) as server:
        load = LoadProfile(concurrency=4, duration=30, warmup=0)
        target, stop, progress = endpoint(server), Stop(), Progress()
        thread = begin(target, requests(target, load), load, TimeLimits(), stop=stop, progress=progress)
        while progress.sent < 4:
            time.sleep(0.01)
        time.sleep(0.2)
        server.kill()
        assert thread.join(5)
    result = thread.result()
    check(result)
    outcomes = [record.outcome for record in result.records]
    assert outcomes[:4] == [Outcome.CONNECTION_LOST] * 4
    # a dying process may still take a connection into its backlog
    assert set(outcomes[4:]) <= {Outcome.CONNECT_FAILED, Outcome.CONNECTION_LOST}
    assert outcomes[-1] is Outcome.CONNECT_FAILED
    assert all(record.chunk_ns for record in result.records[:4])
    stop.close()


def test_stop_cuts_what_is_in_flight() -> None:
    with TruthServer(ttft=10, gap=20, n=500) as server:
        load = LoadProfile(concurrency=4, requests=100, warmup=2)
        target, stop, progress = endpoint(server), Stop(), Progress()
        thread = begin(target, requests(target, load), load, TimeLimits(), stop=stop, progress=progress)
        while progress.sent < 4:
            time.sleep(0.01)
        time.sleep(0.2)
        stopped = time.monotonic_ns()
        stop.set()
        assert thread.join(2)
        result = thread.result()
        assert time.monotonic_ns() - stopped < 1e9
    check(result)
    assert not result.complete
    assert [record.outcome for record in result.records] == [Outcome.CUT] * 4
    assert all(record.chunk_ns and not record.failed for record in result.records)
    assert result.window.end_ns <= stopped + 500_000_000
    stop.close()


def test_stop_before_the_start_sends_nothing(server: TruthServer) -> None:
    stop = Stop()
    stop.set()
    result = run(server, LoadProfile(concurrency=2, requests=9), stop=stop)
    stop.close()
    assert result.records == ()
    assert not result.complete
    assert result.window.seconds == 0


def test_the_limit_of_the_run_cuts_it(server: TruthServer) -> None:
    result = run(server, LoadProfile(concurrency=2, requests=500), limits=TimeLimits(run=0.3))
    assert not result.complete
    assert {record.outcome for record in result.records} == {Outcome.OK, Outcome.CUT}
    assert "0.3 s" in result.warnings[0]


def test_a_refused_key_is_told_without_the_key() -> None:
    with TruthServer(n=2, api_key="right-key") as server:
        target = endpoint(server, headers={"Authorization": "Bearer wrong-key"})
        refused = run(server, ONE, target=target).records[0]
        granted = run(server, ONE, target=endpoint(server, headers={"Authorization": "Bearer right-key"})).records[0]
    assert refused.outcome is Outcome.HTTP_STATUS
    assert refused.http_status == 401
    assert "Incorrect API key" in (refused.detail or "")
    assert "wrong-key" not in (refused.detail or "")
    assert granted.outcome is Outcome.OK


def test_an_unknown_model(server: TruthServer) -> None:
    record = run(server, ONE, target=endpoint(server, model="nope")).records[0]
    assert record.http_status == 404
    assert record.detail == "HTTP 404 Not Found: The model `nope` does not exist."


def test_a_server_that_refuses_by_status_is_not_hammered(server: TruthServer) -> None:
    load = LoadProfile(concurrency=2, duration=0.5, warmup=0)
    result = run(server, load, directive="status=429")
    assert 4 <= len(result.records) <= 24
    assert {record.phase for record in result.records} == {Phase.MEASURED}


def test_an_unknown_host_is_the_targets_error() -> None:
    target = endpoint_of(1, host="no-such-host.invalid")
    with pytest.raises(TargetError, match="no-such-host"):
        drive(target, iter(()), ONE, TimeLimits())


def test_too_many_slots_for_the_descriptors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("resource.getrlimit", lambda _: (256, 256))
    with pytest.raises(InfraError, match="open files"):
        drive(endpoint_of(1), iter(()), LoadProfile(concurrency=1000, requests=1), TimeLimits())


def test_an_error_of_the_plan_reaches_the_caller(server: TruthServer) -> None:
    def broken() -> Iterator[PreparedRequest]:
        yield from map(fail, (1,))

    def fail(_: int) -> PreparedRequest:
        raise RuntimeError("no prompt")

    stop = Stop()
    thread = begin(endpoint(server), broken(), ONE, TimeLimits(), stop=stop)
    with pytest.raises(RuntimeError, match="no prompt"):
        thread.result()
    stop.close()


def test_stop_may_come_from_any_thread_and_twice() -> None:
    stop = Stop()
    threads = [threading.Thread(target=stop.set) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert stop.is_set()
    stop.close()
    stop.set()


# --- TLS and IPv6


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A self-signed certificate for localhost and 127.0.0.1, with its key in the same file."""
    folder = tmp_path_factory.mktemp("tls")
    command = (
        f"openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj /CN=localhost "
        f"-addext subjectAltName=DNS:localhost,IP:127.0.0.1 -keyout {folder}/key.pem -out {folder}/cert.pem"
    )
    subprocess.run(command.split(), check=True, capture_output=True)
    (folder / "both.pem").write_text((folder / "key.pem").read_text() + (folder / "cert.pem").read_text())
    return folder


@pytest.mark.parametrize("how", ["", "close=1", "framing=close", "stale=1"])
def test_tls_with_the_servers_own_authority(certificate: Path, how: str) -> None:
    with TruthServer(ttft=20, gap=5, n=8, certificate=certificate / "both.pem") as server:
        tls = tls_context(certificate / "cert.pem")
        result = run(server, LoadProfile(concurrency=2, requests=6), directive=how, tls=tls)
    assert {record.outcome for record in result.records} == {Outcome.OK}
    assert all(len(record.chunk_ns) == 8 for record in result.records)


def test_a_certificate_that_nobody_vouches_for_is_refused(certificate: Path) -> None:
    with TruthServer(certificate=certificate / "both.pem") as server:
        record = run(server, ONE, tls=tls_context()).records[0]
    assert record.outcome is Outcome.TLS_FAILED
    assert "self-signed" in (record.detail or "") or "self signed" in (record.detail or "")


def test_https_to_a_plain_port_is_a_tls_failure(server: TruthServer) -> None:
    record = run(server, ONE, target=endpoint(server, tls=True), limits=SHORT).records[0]
    assert record.outcome in (Outcome.TLS_FAILED, Outcome.CONNECT_TIMEOUT)


def test_ipv6() -> None:
    with TruthServer(host="::1", ttft=10, gap=5, n=4) as server:
        result = run(server, LoadProfile(concurrency=2, requests=4))
        log = server.wait_log(8)
    assert {record.outcome for record in result.records} == {Outcome.OK}
    assert log[0].headers["host"] == f"[::1]:{server.port}"


def test_localhost_finds_the_family_that_listens() -> None:
    with TruthServer(ttft=5, gap=2, n=2) as server:
        target = endpoint(server, host="localhost")
        records: tuple[RequestRecord, ...] = run(server, ONE, target=target).records
    assert records[0].outcome is Outcome.OK


def endpoint_of(port: int, host: str = "127.0.0.1") -> Endpoint:
    return Endpoint(f"http://{host}:{port}", host, port, False, "m", "openai")
