"""``pytest-llmperf doctor``: what the client can measure, how servers vary, the GPUs, what launches left behind."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from typing import Final

from pytest_llmperf.cli import doctor_gpu, doctor_noise, doctor_reap
from pytest_llmperf.doctor.client import FULL, QUICK, Ceiling, ceiling, faults, study
from pytest_llmperf.doctor.study import Stepped

__all__ = ["SUMMARY", "configure"]

SUMMARY = "measure what this machine itself does to a measurement, and end what launches left on it"

_ROW: Final = "{:<26} {:>9} {:>16} {:>16} {:>8} {:>6} {:>9}  {}"
_HEAD: Final = ("step", "tokens/s", "ICL error µs", "TTFT error µs", "shared", "CPU", "µs/token", "")
_UNITS: Final = ("", "", "p50 / p99", "p50 / p99", "reads", "", "", "")


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    kinds = parser.add_subparsers(dest="kind", metavar="client|noise|gpu|reap", required=True)
    text = "the client's error and ceiling, against a null server of this machine (under half a minute)"
    client = kinds.add_parser("client", help=text, description=text)
    client.add_argument("--full", action="store_true", help="more steps, for two minutes")
    client.add_argument("--json", action="store_true", help="print the steps as JSON")
    client.set_defaults(run=_client)
    doctor_gpu.configure(kinds.add_parser("gpu", help=doctor_gpu.TEXT, description=doctor_gpu.TEXT))
    doctor_noise.configure(kinds.add_parser("noise", help=doctor_noise.TEXT, description=doctor_noise.TEXT))
    doctor_reap.configure(kinds.add_parser("reap", help=doctor_reap.TEXT, description=doctor_reap.TEXT))


def _client(arguments: argparse.Namespace) -> int:
    if not arguments.json:
        print(_ROW.format(*_HEAD).rstrip())
        print(_ROW.format(*_UNITS).rstrip(), flush=True)
    found = study(FULL if arguments.full else QUICK, (lambda _: None) if arguments.json else _tell)
    limit = ceiling(found)
    if arguments.json:
        steps = [{**asdict(each), "events_per_s": each.events_per_s, "faults": faults(each)} for each in found]
        print(json.dumps({"steps": steps, "ceiling": asdict(limit)}, indent=1))
    else:
        print(_advice(limit))
    return 0


def _tell(each: Stepped) -> None:
    step = each.step
    kind = ("random" if step.random else "in step" if step.in_step else "") + (
        f" {step.clients} processes" if step.clients > 1 else ""
    )
    print(
        _ROW.format(
            f"{step.streams} x {step.rate:g}/s {kind}".strip(), f"{each.events_per_s:,.0f}",
            f"{1e6 * each.icl_p50:.1f} / {1e6 * each.icl_p99:.1f}",
            f"{1e6 * each.ttft_p50:.1f} / {1e6 * each.ttft_p99:.1f}",
            f"{100 * each.shared:.2f} %", f"{100 * each.busiest:.0f} %", f"{1e6 * each.cpu_per_event:.1f}",
            f"! {', '.join(faults(each))}" if faults(each) else "ok",
        ),
        flush=True,
    )  # fmt: skip


def _advice(limit: Ceiling) -> str:
    rate = f"{limit.tokens_per_s:,.0f} tokens/s"
    if not limit.tokens_per_s:
        text = "This client cannot be trusted with any of these loads: give it a core of its own."
    elif limit.reached:
        text = f"Trust this machine's client up to {rate} a process; more needs more processes and cores."
    else:
        text = f"Trust this machine's client up to {rate}, the most that was tried."
    if not limit.realtime:
        text += (
            " It shared the cores like any other process; with the right to real-time scheduling "
            "(CAP_SYS_NICE, or ulimit -r 1) it need not wait for one."
        )
    return text
