"""The process of the embedded engine: ``python -P embedded_server.py --model FILE --alias NAME --port N``.

Run by path and importing nothing of the package: its memory and its start-up time are measured, and are to be the
server's own. Ends with one line on stderr and an exit code: 2 wrong usage, 3 xllamacpp is missing or not usable,
4 the CPU can't run it, 5 the model file is unusable, 98 the port is taken. SIGTERM and SIGINT end a serving
process with 0.
"""

from __future__ import annotations

import argparse
import errno
import os
import platform
import select
import signal
import socket
import sys
import time
from pathlib import Path
from typing import Any, Final

__all__ = ["PORT_TAKEN", "main"]

PORT_TAKEN: Final = 98
NO_PACKAGE: Final = 3
WRONG_CPU: Final = 4
BAD_MODEL: Final = 5

_CPUINFO: Final = Path("/proc/cpuinfo")


def main(argv: list[str] | None = None) -> int:
    """Serve until a signal comes. Returns the exit code."""
    options = _parser().parse_args(argv)
    if not _cpu_suffices(platform.machine(), _cpu_flags()):
        return _fail(WRONG_CPU, "this CPU has no AVX2, which the embedded engine (xllamacpp) is compiled for")
    try:
        import xllamacpp
    except ImportError as error:
        hint = 'pip install "pytest-llmperf[embedded]"'
        return _fail(NO_PACKAGE, f"the embedded engine needs the package xllamacpp ({error}); {hint}")
    problem = _model_problem(options.model)
    if problem:
        return _fail(BAD_MODEL, f"{options.model}: {problem}")
    if not _port_free(options.host, options.port):
        return _fail(PORT_TAKEN, f"port {options.port} of {options.host} is taken")
    try:
        params = _params(xllamacpp, options)
    except AttributeError as error:
        return _fail(NO_PACKAGE, f"the package xllamacpp is too old or too new for the embedded engine ({error})")
    try:
        server = xllamacpp.Server(params)
    except RuntimeError as error:
        # The library gives one text for every cause; what can be told apart is. Its log, written by another thread,
        # has the reason: let that come first.
        time.sleep(0.1)
        if not _port_free(options.host, options.port):
            return _fail(PORT_TAKEN, f"port {options.port} of {options.host} is taken")
        return _fail(BAD_MODEL, f"llama.cpp refused {options.model}: {error} (its own lines are above)")
    print(f"serving {options.model} on {server.listening_address}", flush=True)  # noqa: T201 - our log is our stdout
    _wait_for_signal()
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="embedded engine", allow_abbrev=False)
    parser.add_argument("--model", type=Path, required=True, help="GGUF file")
    parser.add_argument("--alias", help="name of the model in /v1/models; default: the file's name without suffix")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--max-num-seqs", type=int, default=2, help="requests computed at once (slots)")
    parser.add_argument("--max-model-len", type=int, default=1024, help="context of one slot in tokens")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--prefix-caching", choices=("true", "false"), default="true")
    parser.add_argument("--batch-size", type=int, default=2048, help="tokens scheduled per step (n_batch)")
    parser.add_argument("--ubatch-size", type=int, default=512, help="tokens computed per step (n_ubatch)")
    # llama.cpp's own default, 8192, keeps every prompt seen in host memory: the process would grow all through a
    # load, and memory metrics would show that and nothing else. Slots keep their cache either way.
    parser.add_argument("--cache-ram", type=int, default=0, help="MiB of host memory for prompts that left their slot")
    return parser


def _params(xllamacpp: Any, options: argparse.Namespace) -> Any:
    params = xllamacpp.CommonParams()
    params.model.path = str(options.model)
    params.model_alias = {options.alias or options.model.stem}
    if hasattr(params, "hostnames"):
        params.hostnames = [options.host]
    else:  # before 2026.10
        params.hostname = options.host
    params.port = options.port
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = options.threads
    params.n_parallel = options.max_num_seqs
    params.n_ctx = options.max_model_len * options.max_num_seqs  # the server divides it among the slots
    params.n_batch, params.n_ubatch = options.batch_size, options.ubatch_size
    params.cache_prompt = options.prefix_caching == "true"
    params.cache_ram_mib = options.cache_ram if params.cache_prompt else 0
    params.cache_idle_slots = params.cache_ram_mib != 0
    params.fit_params = False  # sizes are what was asked for, not what the library would like for this machine
    params.endpoint_metrics, params.endpoint_slots = True, False
    params.ui, params.offline = False, True
    return params


def _wait_for_signal() -> None:
    """Return when SIGTERM or SIGINT has come, whichever of the server's threads the kernel gave it to."""
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    signal.set_wakeup_fd(writer)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda _number, _frame: None)
    select.select([reader], [], [])


def _model_problem(model: Path) -> str | None:
    """Why ``model`` can't be a GGUF file, as far as its first bytes tell."""
    try:
        with model.open("rb") as file:
            magic = file.read(4)
    except OSError as error:
        return error.strerror or str(error)
    return None if magic == b"GGUF" else "not a GGUF file"


def _port_free(host: str, port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            return error.errno != errno.EADDRINUSE
    return True


def _cpu_flags() -> frozenset[str] | None:
    """The first CPU's feature flags; None where the system doesn't list them."""
    try:
        lines = _CPUINFO.read_text().splitlines()
    except OSError:
        return None
    return next((frozenset(line.partition(":")[2].split()) for line in lines if line.startswith("flags")), None)


def _cpu_suffices(machine: str, cpu_flags: frozenset[str] | None) -> bool:
    """The x86-64 wheel needs AVX2 and would die with SIGILL without it; unknown flags get the benefit of the doubt."""
    return machine.lower() not in ("x86_64", "amd64") or cpu_flags is None or "avx2" in cpu_flags


def _fail(code: int, problem: str) -> int:
    sys.stderr.write(f"embedded engine: {problem}\n")
    sys.stderr.flush()
    return code


if __name__ == "__main__":
    sys.exit(main())
