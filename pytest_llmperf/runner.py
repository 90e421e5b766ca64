"""The line from a plan to a verdict, for one test on one launch: the only place that knows its order.

plan → arrivals → prompts → requests → load, with telemetry beside it → trial → metrics → verdict.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from hashlib import blake2b
from itertools import islice
from pathlib import Path
from typing import Final, Protocol, final

from pytest_llmperf.control.calibrate import prompt_tokens
from pytest_llmperf.engines import computes_on_cpu
from pytest_llmperf.errors import InfraError, LlmperfError, UsageError
from pytest_llmperf.gate import Verdict
from pytest_llmperf.gate import judge as judge_checks
from pytest_llmperf.identity import Identity
from pytest_llmperf.load.arrivals import schedule
from pytest_llmperf.load.clients import clients_for
from pytest_llmperf.load.contents import rows_of
from pytest_llmperf.load.driver import Drive, Progress, Stop, begin
from pytest_llmperf.load.prompts import Calibration, fit_calibration, write_words
from pytest_llmperf.load.request import PreparedRequest, body, encode
from pytest_llmperf.load.texts import Prompt, conversation, prompt_of
from pytest_llmperf.measured import metrics_of
from pytest_llmperf.metrics import LoadFacts, assess
from pytest_llmperf.metrics.gpu_validity import GpuFacts
from pytest_llmperf.plan import Plan
from pytest_llmperf.recordfile import write_records, write_telemetry
from pytest_llmperf.records import Phase, Trial
from pytest_llmperf.recount import Tokenizer, load_tokenizer, recount
from pytest_llmperf.result import Result, TrialReport
from pytest_llmperf.samples import GPU_LOST, Telemetry
from pytest_llmperf.server.launch import Launch
from pytest_llmperf.stats.value import MetricValue
from pytest_llmperf.stored import trial_report
from pytest_llmperf.synthetic import synthetic_fault
from pytest_llmperf.telemetry.recorder import record, sources_of
from pytest_llmperf.telemetry.start import complete_start

__all__ = ["Calibrations", "Interrupted", "LoadObserver", "judge", "planned", "run_replay", "store_trial"]

LOOK_S: Final = 0.1
LOOKED_AT: Final = 10_000
"""Requests of a plan whose lengths are checked against the context; a plan by duration has no end."""
CALIBRATION_WORDS: Final = (16, 96)
EXCHANGES: Final = 2
"""Of the conversation that shows what a chat template adds to each."""
UNCALIBRATED: Final = Calibration(tokens_per_word=1.3, overhead_tokens=0.0)
"""What English words come to in common vocabularies, where the server counts no prompt tokens."""


class LoadObserver(Protocol):
    """Told ten times a second how a load goes on."""

    def loading(self, plan: Plan, replay: int, done: int, total: int | None, in_flight: int, failed: int) -> None: ...


class Interrupted(BaseException):
    """A load that ended before its time, with what it has measured so far and what ended it."""

    def __init__(self, trial: Trial, cause: BaseException) -> None:
        self.trial, self.cause = trial, cause
        super().__init__(str(cause))


@final
class Calibrations:
    """Tokens per word of each launch and API, asked once, and once more where there are conversations."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, str, bool], Calibration | None] = {}

    def of(self, plan: Plan, live: Launch) -> Calibration | None:
        """None where the server states no usage. Raises TargetError where it refuses the request."""
        key = (live.endpoint.base_url, plan.workload.api, any(part.turns for part in plan.workload.parts))
        if key not in self._known:
            self._known[key] = _calibrate(plan, live)
        return self._known[key]

    def template_tokens(self, plan: Plan) -> float:
        """Prompt tokens without a word of ours; 0 where it is not known."""
        known = [found for (_, api, _), found in self._known.items() if api == plan.workload.api and found is not None]
        return max((found.overhead_tokens for found in known), default=0.0)


def run_replay(
    plan: Plan,
    live: Launch,
    launch_index: int,
    replay: int,
    salt: str,
    calibrations: Calibrations,
    observer: LoadObserver,
) -> Trial:
    """Drive the plan's load once, with texts that ``salt`` makes unlike those of any other run.

    Raises Interrupted, with the partial trial, when the server dies or the user ends the run; LlmperfError when the
    load cannot be sent at all.
    """
    _require_room(plan, live)
    tokenizer = _tokenizer(plan)
    calibration = calibrations.of(plan, live)
    warnings = () if calibration else ("the server states no usage: prompt lengths are estimated, not calibrated",)
    requests = _requests(plan, live, calibration or UNCALIBRATED, salt)
    gpus = None if computes_on_cpu(live.spec) else live.spec.gpus
    progress = Progress()
    ended_by: BaseException | None = None
    sources = sources_of(live.engine, live.endpoint, plan.server, live.log_path)
    with closing(Stop()) as stop, record(live.pid, gpus, sources=sources) as recorder:
        load = begin(
            live.endpoint,
            requests,
            plan.load,
            plan.server.limits,
            stop=stop,
            progress=progress,
            ca_file=plan.server.ca_file,
            clients=clients_for(plan),
        )
        try:
            while not load.join(LOOK_S):
                live.check_alive()
                observer.loading(plan, replay, progress.finished, _total(plan), progress.in_flight, progress.failed)
        except BaseException as cause:
            ended_by = cause
            stop.set()
        try:
            drive = load.result()
        except LlmperfError:
            if ended_by is not None:
                raise ended_by from None
            raise
    live.start = complete_start(live.start, live.engine, live.log_path, plan.server)
    if tokenizer is not None:
        drive = replace(drive, records=recount(drive.records, tokenizer))
    trial = _trial(plan, drive, launch_index, replay, recorder.telemetry, warnings)
    lost = next((note for note in trial.telemetry.notes if note.startswith(GPU_LOST)), None)
    if lost is not None and (ended_by is None or isinstance(ended_by, LlmperfError)):
        ended_by = InfraError(f"{lost}: see the kernel's log of this machine, and reset or drain the GPU")
    if ended_by is not None:
        raise Interrupted(trial, ended_by) from ended_by
    return trial


def store_trial(
    plan: Plan,
    trial: Trial,
    identity: Identity,
    template_tokens: float,
    report_dir: Path,
    usd_per_hour: float | None = None,
) -> TrialReport:
    """Write the trial's records and telemetry below ``report_dir`` and give its summary. ``identity`` is that of the
    server that was measured, ``usd_per_hour`` the price of its GPUs."""
    gpu, name = identity.value("gpu"), f"{_slug(plan.nodeid)}-{trial.launch}-{trial.replay}.jsonl.gz"
    sampled = trial.telemetry.host or trial.telemetry.gpu or trial.telemetry.engine
    records, telemetry = f"records/{name}", f"telemetry/{name}" if sampled else None
    try:
        write_records(report_dir / records, trial.records)
        if telemetry is not None:
            write_telemetry(report_dir / telemetry, trial.telemetry)
    except OSError as error:
        raise InfraError(f"{report_dir / records} or its telemetry cannot be written: {error.strerror}") from None
    facts = LoadFacts(
        request_rate=plan.load.request_rate if plan.load.max_concurrency is None else None,
        # Conversations pause to think: what is in flight is not what the load asked for.
        concurrency=None if any(part.turns for part in plan.workload.parts) else plan.load.concurrency,
        stationary=plan.load.ramp is None and plan.load.trace is None and plan.load.schedule is None,
        targeted=plan.server.targeted,
        shared_prefix=plan.workload.shares,
        recorded=plan.workload.dataset is not None,
        template_tokens=template_tokens,
        asked=plan.limited,
        gpu=GpuFacts(plan.server.gpu_shared, plan.server.lock_clocks),
    )
    validity = assess(trial, facts)
    if fault := synthetic_fault(plan.workload, identity):
        validity = replace(validity, reasons=(*validity.reasons, fault))
    return trial_report(trial, metrics_of(plan, [trial], (), usd_per_hour, gpu=gpu), validity, records, telemetry)


def judge(plan: Plan, measured: dict[str, MetricValue], result: Result) -> Verdict:
    """The verdict on a finished measurement."""
    invalid = dict.fromkeys(reason for trial in result.trials for reason in trial.validity.reasons)
    reasons = tuple(invalid)
    return judge_checks(plan.slas, measured, invalid=reasons, ok=result.ok, failed=result.failed, expects=plan.expects)


def _requests(plan: Plan, live: Launch, calibration: Calibration, salt: str) -> Iterator[PreparedRequest]:
    extras = live.engine.request_extras(plan.server)
    if live.engine.continuous_usage:
        extras = {**extras, "stream_options": {"continuous_usage_stats": True}}
    workload, rows, chat = plan.workload, rows_of(plan.workload), _chat(plan)
    for arrival in schedule(workload, plan.load, plan.seed):
        prompt = prompt_of(arrival, calibration, plan.seed, salt, rows, chat=chat)
        sampling = workload.sampling_of(arrival.part)
        if arrival.row is not None:
            sampling = {**sampling, **rows[arrival.row].sampling}
        tokens, stream = arrival.output_tokens, arrival.stream
        fields = body(live.endpoint.model, workload, prompt, tokens, extras, stream=stream, sampling=sampling)
        wire = encode(live.endpoint, workload.api, fields, stream=stream)
        yield PreparedRequest(arrival, wire, workload.api, stream=stream, keep_text=plan.server.tokenizer is not None)


def _chat(plan: Plan) -> bool:
    """Whether prompts are messages."""
    return plan.workload.api in ("chat", "ollama-chat")


def _tokenizer(plan: Plan) -> Tokenizer | None:
    path = plan.server.tokenizer
    return None if path is None else load_tokenizer(path, f"servers.{plan.server.name}")


def _calibrate(plan: Plan, live: Launch) -> Calibration | None:
    def count(prompt: Prompt) -> int | None:
        return prompt_tokens(
            live.endpoint,
            plan.workload.api,
            prompt,
            extras=live.engine.request_extras(plan.server),
            ca_file=plan.server.ca_file,
            timeout=plan.server.limits.request,
        )

    observations = []
    for words in CALIBRATION_WORDS:
        text = write_words(words, plan.seed, "calibration", 0)
        tokens = count(text)
        if tokens is None and (tokenizer := _tokenizer(plan)) is not None:
            (tokens,) = tokenizer.count([text])
        if tokens is None:
            return None
        observations.append((words, tokens))
    try:
        found = fit_calibration(observations)
    except ValueError:
        return None  # a server that counts every prompt alike does not count
    if not any(part.turns for part in plan.workload.parts):
        return found
    said = [write_words(CALIBRATION_WORDS[0], plan.seed, "calibration", at) for at in range(2 * EXCHANGES + 1)]
    apart, together = count(conversation(said, _chat(plan))), count(" ".join(said))
    added = 0.0 if apart is None or together is None else (apart - together) / EXCHANGES
    return replace(found, exchange_tokens=max(0.0, added))


def _trial(
    plan: Plan, drive: Drive, launch_index: int, replay: int, telemetry: Telemetry, warnings: tuple[str, ...]
) -> Trial:
    return Trial(
        launch=launch_index,
        replay=replay,
        records=drive.records,
        planned=planned(plan),
        window=drive.window,
        client=drive.client,
        telemetry=telemetry,
        wall_start=drive.wall_start,
        monotonic_start_ns=drive.monotonic_start_ns,
        complete=drive.complete,
        warnings=(*plan.notes, *warnings, *drive.warnings),
    )


def planned(plan: Plan) -> int:
    """Measured requests that must have been sent. Of an open loop's conversations the first turns are due for sure."""
    if plan.load.requests is not None or not plan.load.open_loop:
        return plan.load.requests or 0
    arrivals = schedule(plan.workload, plan.load, plan.seed)
    return sum(arrival.phase is Phase.MEASURED and not arrival.turn for arrival in arrivals)


def _require_room(plan: Plan, live: Launch) -> None:
    """Raises UsageError where the longest request cannot fit the server's context: it would only fail."""
    context = live.identity.value("max_model_len")
    planned = islice(schedule(plan.workload, plan.load, plan.seed), LOOKED_AT)
    longest = max(((arrival.input_tokens or 0) + arrival.output_tokens for arrival in planned), default=0)
    if context.isdecimal() and longest > int(context):
        raise UsageError(
            f"workload {plan.workload.name} has requests of up to {longest} tokens, but the context of server "
            f"{plan.server.name} is {context}: raise max_model_len or shorten the workload"
        )


def _total(plan: Plan) -> int | None:
    if any(part.turns for part in plan.workload.parts):
        return None  # the warm-up is counted in conversations
    return None if plan.load.requests is None else plan.load.requests + plan.load.warmup_requests


def _slug(nodeid: str) -> str:
    """A file name for a node id: readable, and unlike that of any other."""
    readable = re.sub(r"[^A-Za-z0-9]+", "-", nodeid.rpartition("/")[2]).strip("-")[:80]
    return f"{readable}-{blake2b(nodeid.encode(), digest_size=4).hexdigest()}"
