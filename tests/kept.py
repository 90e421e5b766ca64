"""Hand-made baselines, and the places that keep them: a directory, and an S3 server in a process of its own."""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from pytest_llmperf.baseline.keys import Key
from pytest_llmperf.baseline.samples import LaunchSamples
from pytest_llmperf.baseline.schema import Session, StoredLaunch
from pytest_llmperf.baseline.store import Store
from pytest_llmperf.identity import Fact, Identity

START = datetime(2027, 1, 1, tzinfo=UTC)
TEST = "perfsuites/test_chat.py::test_chat"
DEFINITIONS = {"ttft_p50": "ttft/1", "output_throughput": "output_throughput/1"}


def identity(version: str = "0.33.0", gpu: str = "NVIDIA H200", **inputs: str) -> Identity:
    values = {"engine": "vllm", "version": version, "model": "meta-llama/Llama-3.1-8B", "quantization": "bf16"} | inputs
    return Identity(
        input={name: Fact(value=value, source="live") for name, value in values.items()},
        environment={
            "gpu": Fact(value=gpu, source="live"),
            "gpu_count": Fact(value="1", source="live"),
            "driver": Fact(value="580.1", source="live"),
        },
        consequence={"cuda": Fact(value="13.0", source="live")},
    )


def launch(order: int, ttft: float | None = 0.12, rate: float = 2400.0, **changes: Any) -> StoredLaunch:
    values: dict[str, Any] = {
        "order": order, "block": order, "n_requests": 200, "n_failed": 0, "n_tokens": 25_600,
        "metrics": {"ttft_p50": ttft, "output_throughput": rate},
    }  # fmt: skip
    return StoredLaunch(**(values | changes))


def session(number: int = 0, launches: Sequence[StoredLaunch] | None = None, **changes: Any) -> Session:
    """Of the ``number``-th day."""
    day = START + timedelta(days=number)
    values: dict[str, Any] = {
        "id": f"{day:%Y%m%dT%H%M%SZ}-{number:06x}", "created": day.isoformat(), "by": "Ada", "reason": "nightly",
        "commit": "0123abc", "node": "gpu-7", "pool": None, "plugin_version": "0.2.0",
        "environment": identity().environment, "consequence": identity().consequence,
        "launches": tuple(launches or (launch(order) for order in range(3))),
    }  # fmt: skip
    return Session(**(values | changes))


def samples(launches: int = 3, values: Sequence[float] = (0.1, 0.12, 0.14)) -> list[LaunchSamples]:
    return [LaunchSamples(order, {"ttft": values}) for order in range(launches)]


def put(store: Store, who: Identity | None = None, what: Session | None = None, test: str = TEST, **more: Any) -> Key:
    """Append a session and say under which key."""
    who = who or identity()
    key = Key.of(who, test)
    store.append(key, who, what or session(), **({"samples": samples(), "definitions": DEFINITIONS} | more))
    return key


@contextmanager
def s3_server() -> Iterator[Mapping[str, str]]:
    """The environment with which S3's clients find the server."""
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", "0"]
    with tempfile.NamedTemporaryFile() as log:  # it logs every request: a pipe would fill up
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=log)
        try:
            yield _environment(_port(process, Path(log.name)))
        finally:
            process.kill()
            process.wait()


def _port(process: subprocess.Popen[bytes], log: Path) -> str:
    while (found := re.search(r"http://127\.0\.0\.1:(\d+)", log.read_text())) is None:
        assert process.poll() is None, log.read_text()
        time.sleep(0.05)
    return found[1]


def _environment(port: str) -> dict[str, str]:
    return {
        "AWS_ACCESS_KEY_ID": "testing", "AWS_SECRET_ACCESS_KEY": "testing", "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}", "AWS_EC2_METADATA_DISABLED": "true",
        "AWS_CONFIG_FILE": "/dev/null", "AWS_SHARED_CREDENTIALS_FILE": "/dev/null", "NO_PROXY": "127.0.0.1",
    }  # fmt: skip
