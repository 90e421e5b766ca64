"""The truth server as an engine that the plugin launches: ``TTFT`` and ``GAP`` (ms) of its environment are its speed.

Other variables: ``SPREAD`` makes launches differ by so much (log-normal, drawn anew for each), ``SLOW_VERSION`` names
the version that takes twice as long to the first token, ``FAILS`` answers so many per mille with 500, ``ERRS_IN`` says
in which launches that serve a load (counted from 0) it answers 300 per mille so, ``BREAKS`` makes the start fail,
``TOKENS`` adds output tokens, ``LAUNCHES`` is a file that gets a line for every start. ``WATCHED`` is the same engine
with a page of metrics: ``FOREIGN``, ``HITS`` and ``RESTART`` are those of ``truth_server.Server.metrics``.
"""

from __future__ import annotations

import json
import math
import os
import random
import sys
from dataclasses import asdict, replace
from pathlib import Path

import truth_server

from pytest_llmperf.engines import ENGINES
from pytest_llmperf.engines.engine import Engine
from pytest_llmperf.plan import ServerSpec

CONFTEST = f"""
import sys
sys.path.insert(0, {str(Path(__file__).parent)!r})
import truth_engine
truth_engine.register()
"""
"""For the tests of a child run."""


def _command(spec: ServerSpec, port: int, _model: str) -> list[str]:
    env = {**os.environ, **spec.env}
    number = lambda name, usual: float(env.get(name, usual))  # noqa: E731
    if "LAUNCHES" in env:
        with Path(env["LAUNCHES"]).open("a") as file:
            file.write(f"{spec.name} {spec.version or '1.0'} {json.dumps(spec.env, sort_keys=True)}\n")
    speed = math.exp(random.gauss(0, number("SPREAD", 0)))
    slow = 2 if env.get("SLOW_VERSION") == (spec.version or "1.0") else 1
    script = truth_server.Script(ttft=number("TTFT", 8) * speed * slow, gap=number("GAP", 2) * speed)
    options = {
        "host": "127.0.0.1", "port": port, "model": "truth", "api_key": None, "certificate": None, "prefix": "",
        "slots": spec.max_num_seqs or 0, "log": env.get("TRUTH_LOG", "/dev/null"), "script": asdict(replace(script)),
        "fails": number("FAILS", 0), "longer": int(number("TOKENS", 0)),
        "errs_in": env.get("ERRS_IN", "").split(), "loads": env.get("LAUNCHES", "") + ".loads",
        "metrics": {"foreign": number("FOREIGN", 0), "hits": number("HITS", 0), "restart": int(number("RESTART", 0))},
    }  # fmt: skip
    if "BREAKS" in env:
        return [sys.executable, "-c", "print('no such kernel image'); raise SystemExit(3)"]
    return [sys.executable, "-S", truth_server.__file__, json.dumps(options)]


TRUTH = Engine(
    name="truth",
    title="the truth server",
    parameters={"max_num_seqs": "slots"},
    default_port=8000,
    cpu=True,
    command=_command,
    launch_version=lambda: "1.0",
)
WATCHED = replace(
    TRUTH,
    name="watched",
    metrics_url="/metrics",
    series={
        "requests": ("truth:requests_total",),
        "prompt_tokens": ("truth:prompt_tokens_total",),
        "prefix_queries": ("truth:prompt_tokens_total",),
        "prefix_hits": ("truth:prefix_hits_total",),
        "running": ("truth:running",),
        "kv_usage": ("truth:usage",),
        "queue_wait": ("truth:wait_seconds",),
    },
)


def register() -> None:
    ENGINES["truth"] = TRUTH
    ENGINES["watched"] = WATCHED
