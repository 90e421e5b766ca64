"""No secret reaches the log, wherever the stream is cut and however the run ends. Real processes and files."""

from __future__ import annotations

import json
import os
import random
import re
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from pytest_llmperf.server.process import ServerProcess
from pytest_llmperf.server.scribe import Blotter

SECRET = "sk-live-0123456789abcdef"


@pytest.fixture(autouse=True)
def _state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


def wait_until(condition: Callable[[], object], what: str, seconds: float = 20.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"waited {seconds} s in vain until {what}"
        time.sleep(0.02)


def written(pieces: list[bytes], *secrets: bytes) -> bytes:
    blotter = Blotter(secrets)
    return b"".join([*map(blotter.feed, pieces), blotter.end()])


def test_a_secret_is_hidden_wherever_it_is_cut() -> None:
    text = b"a sk-12345 b\nsk-1sk-12345\xff\x00sk-12345"
    for first in range(len(text) + 1):
        for second in range(first, len(text) + 1):
            pieces = [text[:first], text[first:second], text[second:]]
            assert written(pieces, b"sk-12345") == b"a *** b\nsk-1***\xff\x00***"
    assert written([text[i : i + 1] for i in range(len(text))], b"sk-12345") == b"a *** b\nsk-1***\xff\x00***"


def test_random_secrets_that_overlap_are_replaced_from_the_left_and_the_longest_first() -> None:
    """As ``re`` does with the whole text; a text of two letters is full of beginnings, overlaps and repetitions."""
    chance = random.Random(7)
    for _ in range(3000):
        secrets = {bytes(chance.choices(b"ab", k=chance.randint(1, 5))) for _ in range(chance.randint(1, 3))}
        text = bytes(chance.choices(b"ab\n", (4, 4, 1), k=chance.randint(0, 40)))
        cuts = sorted(chance.choices(range(len(text) + 1), k=chance.randint(0, 6)))
        pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
        whole = re.compile(b"|".join(map(re.escape, sorted(secrets, key=len, reverse=True))))
        assert written(pieces, *secrets) == whole.sub(b"***", text), (text, pieces, secrets)


def test_all_but_the_possible_beginning_of_a_secret_is_passed_on_at_once() -> None:
    blotter = Blotter([b"sk-12345"])
    assert blotter.feed(b" 10%\r 50") == b" 10%\r 50"
    assert blotter.feed(b"% k sk-1") == b"% k "
    assert blotter.feed(b"x") == b"sk-1x"


def test_most_of_a_secret_whose_end_never_came_is_hidden() -> None:
    assert written([b"key sk-1234"], b"sk-12345") == b"key ***"
    assert written([b"key sk-12"], b"sk-12345") == b"key sk-12"


def test_the_log_is_whole_and_binary_safe(tmp_path: Path) -> None:
    """Every byte but those of the secret: many writes, several processes, no end of the last line."""
    code = """
        import os, subprocess, sys
        child = subprocess.Popen([sys.executable, "-c", "import os; [os.write(1, b'child\\\\n') for _ in range(2000)]"])
        for i in range(3000):
            os.write(1, bytes(range(256)) + b"%d " % i + os.environ["MY_KEY"].encode() + b"\\n")
        child.wait()
        os.write(2, b"last")
    """
    command = [sys.executable, "-c", textwrap.dedent(code)]
    process = ServerProcess.start(command, {"MY_KEY": SECRET}, tmp_path / "log")
    wait_until(lambda: not process.poll(), "it has ended")
    assert process.log_tail(1) == ("last",), "known as soon as its end is"
    process.stop()
    content = (tmp_path / "log").read_bytes()
    assert content.count(b"child\n") == 2000
    expected = b"".join(bytes(range(256)) + b"%d ***\n" % i for i in range(3000)) + b"last"
    assert content.replace(b"child\n", b"") == expected


@pytest.mark.parametrize("end", ["stop", "kill", "exit"])
def test_no_secret_is_in_the_log_at_any_time_however_pytest_ends(tmp_path: Path, end: str) -> None:
    owner_code = textwrap.dedent("""
        import json, os, sys, time
        from pathlib import Path
        from pytest_llmperf.server.process import ServerProcess
        command, log, end = json.loads(sys.argv[1])
        process = ServerProcess.start(command, dict(os.environ), Path(log), hidden=frozenset({os.environ["MYK"]}))
        sys.stdin.readline()
        if end == "stop":
            process.stop(5)
        os._exit(0)
    """)
    server = """
        import os, signal, sys, time
        def bye(*_): print("bye", os.environ["MYK"], flush=True); os._exit(0)
        signal.signal(15, bye)
        print(dict(os.environ), flush=True)
        while True: print("key", os.environ["MYK"], flush=True); time.sleep(0.01)
    """
    log = tmp_path / "log"
    argument = json.dumps([[sys.executable, "-c", textwrap.dedent(server)], str(log), end])
    environment = {**os.environ, "MYK": SECRET}
    with subprocess.Popen(
        [sys.executable, "-c", owner_code, argument], stdin=subprocess.PIPE, env=environment
    ) as owner:
        wait_until(lambda: log.exists() and log.read_bytes().count(b"key ***\n") > 5, "it logs")
        assert SECRET.encode() not in log.read_bytes()
        if end == "kill":
            owner.kill()
        else:
            owner.communicate(b"\n")
    wait_until(lambda: log.read_bytes().endswith(b"bye ***\n"), "its last words are there")
    assert SECRET.encode() not in log.read_bytes()


def test_what_ends_a_server_elsewhere_says_no_secret_either(tmp_path: Path) -> None:
    from pytest_llmperf.server.leases import new_lease

    code = "import os; print('ended with', os.environ['MYK'])"
    lease = new_lease(["server"], ended=[sys.executable, "-c", code])
    process = ServerProcess.start(
        [sys.executable, "-c", "import time; print('up', flush=True); time.sleep(60)"],
        {"MYK": SECRET}, tmp_path / "log", lease=lease, hidden=frozenset({SECRET}),
    )  # fmt: skip
    wait_until(lambda: process.log_tail() == ("up",), "it is up")
    process.stop(5)
    assert process.log_tail() == ("up", "ended with ***")
    assert SECRET not in (tmp_path / "log").read_text()


def test_a_full_disk_does_not_stop_the_server(tmp_path: Path) -> None:
    code = "import os; [os.write(1, b'x' * 65536) for _ in range(100)]; os.write(1, b'done')"
    log = tmp_path / "log"
    log.symlink_to("/dev/full")
    process = ServerProcess.start([sys.executable, "-c", code], {"MY_KEY": SECRET}, log)
    wait_until(lambda: not process.poll(), "it has ended")
    assert process.exit_code == 0
    process.stop()
