"""What the package knows about one kind of inference server. Engines are constants of this type, in one dict."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, final

from pytest_llmperf.engines.parameters import SETTABLE, Parameters, flag_problem, same_version
from pytest_llmperf.errors import ConfigError
from pytest_llmperf.plan import ServerSpec
from pytest_llmperf.records import Api
from pytest_llmperf.samples import Gauge, Quantity

__all__ = [
    "SETTABLE",
    "Documents",
    "Engine",
    "Evidence",
    "LiveFacts",
    "LogFact",
    "check_api",
    "check_parameters",
    "listed_model",
    "mapping",
    "takes_what_is_free",
    "texts",
]

Documents = Mapping[str, Any]
"""Path → what the server answered there: parsed JSON, or text where it isn't JSON. Paths without answer are absent."""

Evidence = Literal["run for real", "from documentation"]

LogFact = Literal["kv_capacity_tokens", "max_concurrency", "compile_s", "preempted", "would_tell", "error"]
"""Facts of start-up, one number each; how many requests were preempted (``preempted``: the sum of its numbers, 1 for a
line without one), lines that are seen only where such a line would be too (``would_tell``), and lines that are kept
(``error``)."""


@dataclass(frozen=True, slots=True)
class LiveFacts:
    """What a running server says about itself; None or absent where it doesn't say."""

    version: str | None = None
    quantization: str | None = None
    parameters: Mapping[str, str] = field(default_factory=dict)
    """Canonical parameters in effect."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """GPU kind and driver of its own machine."""
    consequence: Mapping[str, str] = field(default_factory=dict)
    """What followed from the inputs: context length, slots, fingerprints …"""


def _no_facts(_documents: Documents, _model: str) -> LiveFacts:
    return LiveFacts()


def _no_extras(_spec: ServerSpec) -> dict[str, Any]:
    return {}


def _named_model(spec: ServerSpec) -> str:
    return spec.model or ""


def _given_share(spec: ServerSpec) -> float | None:
    return spec.gpu_memory_utilization


def takes_what_is_free(_spec: ServerSpec) -> None:
    """``memory_share`` of an engine whose share is one of the memory that it finds free."""


def _no_environment(_spec: ServerSpec, _port: int) -> dict[str, str]:
    return {}


@final
@dataclass(frozen=True, slots=True)
class Engine:
    """One kind of server: how it is started, recognised, read and asked."""

    name: str
    title: str
    """As people call it, for messages."""
    parameters: Parameters
    """Parameter of ``SETTABLE`` → the engine's own flag. A parameter that isn't here doesn't exist for the engine."""
    default_port: int
    cpu: bool
    """True where the model computes on the CPU, so that memory means host RSS."""
    spellings: Mapping[str, str] = field(default_factory=dict)
    """Other spellings of its flags for ``model`` and ``port`` → these."""
    command: Callable[[ServerSpec, int, str], list[str]] | None = None
    """``(spec, port, model)`` → argv. None: can't be launched here, only targeted by URL. The first item is the
    program, which another installation of the engine replaces by its own. ``spec.version`` is what is installed, as
    far as that is known before it runs; where not, the newest."""
    environment: Callable[[ServerSpec, int], dict[str, str]] = _no_environment
    """``(spec, port)`` → environment variables of its process, beneath what ``spec.env`` says."""
    distribution: str | None = None
    """Name of the engine on the package index. None: its versions can't be installed from there."""
    companions: tuple[str, ...] = ()
    """Further requirements that ``distribution`` is installed with, e.g. ``"torch"``."""
    program: str = "python"
    """Its program in an environment that ``distribution`` is installed in, and on the PATH; ``"python"``: a module
    that a Python runs."""
    find_model: Callable[[ServerSpec], str] = _named_model
    """The model to launch with; may make or check a file. Raises ConfigError or InfraError."""
    defaults: Mapping[str, str] = field(default_factory=dict)
    """Values that ``command`` passes for canonical parameters left out of the specification."""
    memory_share: Callable[[ServerSpec], float | None] = _given_share
    """Share of a GPU's whole memory that must be free for a launch, the engine's own default where the specification
    says nothing. None: not known, or it takes what it finds (its share is one of the memory that is free)."""
    same_version: Callable[[str, str], bool] = same_version
    """``(wanted, found)`` → whether a server that says ``found`` of itself is the version ``wanted``."""
    launch_version: Callable[[], str | None] | None = None
    """Version of what ``command`` would launch, where the server itself doesn't tell."""
    retry_exit_code: int | None = None
    """Exit code that says the port was taken in the meantime: worth another try on another port."""
    ready_path: str = "/health"
    owned_by: frozenset[str] = frozenset()
    """Values of ``owned_by`` in ``/v1/models`` by which a running server is recognised."""
    mark: tuple[str, str] | tuple[str, str, str] | None = None
    """A path that answers with a JSON object that has this key, with this value where one is given: how one is
    recognised whose models are owned by whoever made them, or that does not list them."""
    info_paths: tuple[str, ...] = ()
    """What to fetch for ``read_facts`` besides ``/v1/models``."""
    read_facts: Callable[[Documents, str], LiveFacts] = _no_facts
    """``(documents, model name)`` → facts. Fed with documents, does no I/O; an odd document yields no facts."""
    cache_env: tuple[str, ...] = ()
    """Environment variables that name the folders of its compile caches. Every specification gets folders of its own,
    so that no launch finds what another configuration has compiled."""
    request_extras: Callable[[ServerSpec], dict[str, Any]] = _no_extras
    """Merged into every request body: exact output length, prompt cache."""
    continuous_usage: bool = False
    """Understands ``stream_options.continuous_usage_stats`` (token counts in every chunk)."""
    apis: tuple[Api, ...] | None = ("chat", "completions")
    """The APIs that it speaks; None where nothing is known about it."""
    lists_models: bool = True
    """Has ``/v1/models``; where not, the model must be named."""
    metrics_url: str | None = None
    """Where its metrics are, in Prometheus' text format: a path on its own port, or ``:PORT/path`` on another one.
    None: it has none."""
    series: Mapping[Quantity, tuple[str, ...]] = field(default_factory=dict)
    """Quantity → the names it has had, newest first: of samples (``vllm:num_preemptions_total``), of histograms without
    their suffix. The first that is there counts; series that differ in labels only are added up (of ``kv_usage`` and
    ``acceptance_length`` the largest counts). ``name{label}`` takes the label's value for the number; of
    ``name{label=}`` only those count whose label is the name of the model."""
    log_patterns: Mapping[LogFact, tuple[str, ...]] = field(default_factory=dict)
    """What its log tells → regular expressions whose first group is the value; thousands separators are allowed."""
    log_series: Mapping[Gauge, tuple[str, ...]] = field(default_factory=dict)
    """What the lines tell that it writes to its log every so often under load; as ``log_patterns``, ``12.5%`` is 0.125.
    A line is one of them where it tells of requests that run and wait."""
    reset_paths: tuple[str, ...] = ()
    """Empties the prefix cache, by POST: the first that answers 200."""
    profile_paths: tuple[str, str] | None = None
    """Starts and stops its own profiler, by POST."""
    evidence: Evidence = "from documentation"
    """What our knowledge of talking to it rests on: requests, streams, series."""
    launch_evidence: Evidence = "from documentation"
    """What our knowledge of launching it rests on: ``command`` and the flags."""


def check_parameters(engine: Engine, spec: ServerSpec, installed: str = "") -> None:
    """Raise ConfigError where ``spec`` sets a parameter that the engine, or this version of it, doesn't have.

    ``installed`` is the version that is going to run, ``"newest"`` where only the running server can tell. Without it
    only ``spec.version`` is known.
    """
    for name in SETTABLE:
        if getattr(spec, name) is not None:
            problem = flag_problem(name, engine.parameters, installed or spec.version or "", engine.title)
            if problem is not None:
                raise ConfigError(f"servers.{spec.name}", name, problem)
    if spec.gpu_count and engine.cpu:
        raise ConfigError(f"servers.{spec.name}", "gpus", f"{engine.title} computes on the CPU; leave it out")


def check_api(engine: Engine, api: Api, where: str) -> None:
    """Raise ConfigError where ``engine`` is known not to speak ``api``."""
    if engine.apis is not None and api not in engine.apis:
        raise ConfigError(where, "api", f"{engine.title} does not speak {api!r}; it speaks: {', '.join(engine.apis)}")


def mapping(value: Any) -> Mapping[str, Any]:
    """``value`` if it is a JSON object, else an empty one: servers answer odd things."""
    return value if isinstance(value, Mapping) else {}


def texts(pairs: Mapping[str, Any]) -> dict[str, str]:
    """The entries that have a value, as text; booleans as in JSON."""
    return {
        name: str(value).lower() if isinstance(value, bool) else str(value)
        for name, value in pairs.items()
        if value is not None and value != ""
    }


def listed_model(documents: Documents, model: str) -> Mapping[str, Any]:
    """The entry of ``model`` in ``/v1/models``, empty where there is none."""
    entries = mapping(documents.get("/v1/models")).get("data")
    for entry in entries if isinstance(entries, list) else []:
        if mapping(entry).get("id") == model:
            return mapping(entry)
    return {}
