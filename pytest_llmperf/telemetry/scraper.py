"""The engine's page of metrics, fetched beside a load in a thread of its own: a slow page delays no other sample."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from types import TracebackType
from typing import Final, Self, final
from urllib.parse import urlsplit

from pytest_llmperf.control.client import Client, fetch, open_client
from pytest_llmperf.engines import Engine
from pytest_llmperf.errors import LlmperfError, TargetError
from pytest_llmperf.plan import ServerSpec
from pytest_llmperf.records import Endpoint
from pytest_llmperf.samples import EngineSample
from pytest_llmperf.telemetry.prometheus import Page, impossible

__all__ = ["Scraper"]

_GAP: Final = 3.0
"""A page that is late by this many intervals leaves a gap that is reported."""
_GIVEN_UP: Final = 3
"""Failures in a row."""
_MORE_S: Final = 0.5
"""For a request that takes all of its time to come to its end."""
_OK: Final = 200
_HEADERS: Final = {
    "accept": "text/plain;version=0.0.4",
    "accept-encoding": "identity",  # to compress the page would take time that the server has for the load
}


@final
class Scraper:
    """A context manager that fetches the page on entry, every ``interval_s``, and on exit. Never raises: what goes
    wrong is in ``notes``. A page that fails three times in a row is given up. Entry takes little more than
    ``timeout_s``, and exit that for every page, whatever they do; an exit without a page so far waits for none.

    It is asked like the API: certificates, socket and key of ``endpoint``. On another port (``:8002/metrics``) it is
    asked over plain HTTP and without the key, which nothing protects there. ``urls`` stand in for the engine's own
    place: pages of the processes that make up one server, together one sample; the key goes to the API's address only.
    """

    def __init__(
        self,
        engine: Engine,
        endpoint: Endpoint,
        *,
        urls: Sequence[str] = (),
        ca_file: Path | None = None,
        interval_s: float = 1.0,
        timeout_s: float = 5.0,
    ) -> None:
        self._page = Page(engine.series, endpoint.model)
        self._places = [_absolute(endpoint, url) for url in urls] or [
            _place(endpoint, engine.metrics_url or "/metrics")
        ]
        self._ca_file, self._interval_s, self._timeout_s = ca_file, interval_s, timeout_s
        self._clients: list[Client] = []
        self._kept: list[tuple[int, tuple[bytes, ...]]] = []
        self._problems: Counter[str] = Counter()
        self._parsed: list[EngineSample] = []
        self._failed = 0
        self._begun, self._stop, self._left = threading.Event(), threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, name="llmperf-metrics", daemon=True)

    @classmethod
    def of(cls, engine: Engine, endpoint: Endpoint, spec: ServerSpec) -> Self | None:
        """None where there is no page that we can read."""
        urls = spec.metrics_at(endpoint.port)
        known = (urls or engine.metrics_url) and engine.series
        return cls(engine, endpoint, urls=urls, ca_file=spec.ca_file) if known else None

    def __enter__(self) -> Self:
        self._thread.start()
        self._begun.wait(self._timeout_s + _MORE_S)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join((self._timeout_s * len(self._places) if self._kept else 0.0) + _MORE_S)
        if self._thread.is_alive():
            self._left.set()
            if self._kept or not self._problems:
                self._problems[f"no answer within {self._timeout_s:g} s"] += 1

    def samples(self) -> tuple[EngineSample, ...]:
        """What was read so far; parsed only now. Pages that say nothing we know are left out."""
        kept = list(self._kept)
        self._parsed += [self._page.read(t_ns, *pages) for t_ns, pages in kept[len(self._parsed) :]]
        return tuple(sample for sample in self._parsed if sample.values or sample.histograms or sample.untold)

    def notes(self) -> tuple[str, ...]:
        """Why pages are absent, gaps."""
        found = []
        for problem, times in list(self._problems.items()):
            given_up = "; it was not asked again" if self._failed >= _GIVEN_UP else ""
            found.append(f"the engine's metrics: {problem}{f' ({times} times)' if times > 1 else ''}{given_up}")
        kept = list(self._kept)
        if kept and not any(lines for _, pages in kept for lines in pages):
            asked = ", ".join(path for _, path in self._places)
            found.append(f"the engine's metrics: {asked} has none of the series that we know")
        found += impossible(self.samples())
        gaps = [(after - before) / 1e9 for (before, _), (after, _) in pairwise(kept)]
        late = [gap for gap in gaps if gap > _GAP * self._interval_s]
        if late:
            found.append(f"the engine's metrics have gaps: {len(late)}, the longest {max(late):.1f} s")
        return tuple(found)

    def _run(self) -> None:
        try:
            for place, _ in self._places:
                self._clients.append(open_client(place, ca_file=self._ca_file, timeout=self._timeout_s))
                self._clients[-1].headers.update(_HEADERS)
        except LlmperfError as error:
            self._problems[str(error)] += 1
            self._failed = _GIVEN_UP
        self._round()
        self._begun.set()
        due = time.monotonic()
        while self._failed < _GIVEN_UP:
            due = max(due + self._interval_s, time.monotonic())
            ending = self._stop.wait(due - time.monotonic())
            self._round()
            if ending:
                break
        for client in self._clients:
            client.close()

    def _round(self) -> None:
        if self._failed >= _GIVEN_UP or self._left.is_set():
            return
        try:
            asked = time.monotonic_ns()
            pages = tuple(
                self._lines(client, path) for client, (_, path) in zip(self._clients, self._places, strict=True)
            )
            answered = time.monotonic_ns()
            if self._left.is_set():
                return
        except Exception as error:  # telemetry that fails must not end the load that it watches
            known = str(error) if isinstance(error, LlmperfError) else f"{type(error).__name__}: {error}"
            self._problems[known] += 1
            self._failed += 1
            return
        self._failed = 0
        self._kept.append(((asked + answered) // 2, pages))

    def _lines(self, client: Client, path: str) -> bytes:
        response = fetch(client, path)
        if response.status_code != _OK:
            raise TargetError(str(response.url), f"HTTP {response.status_code}")
        lines = self._page.wanted(response.content)
        if lines is None:
            raise TargetError(str(response.url), "the page ends in the middle of a line")
        return lines


def _place(endpoint: Endpoint, metrics_url: str) -> tuple[Endpoint, str]:
    """Whom to ask, and for which path. ``:8002/metrics`` is another port of the same machine."""
    if not metrics_url.startswith(":"):
        return endpoint, metrics_url
    port, _, path = metrics_url[1:].partition("/")
    host = f"[{endpoint.host}]" if ":" in endpoint.host else endpoint.host
    elsewhere = replace(endpoint, base_url=f"http://{host}:{port}", port=int(port), tls=False, headers={}, socket=None)
    return elsewhere, f"/{path}"


def _absolute(endpoint: Endpoint, url: str) -> tuple[Endpoint, str]:
    """As ``_place``, for a whole URL."""
    parts, api = urlsplit(url), urlsplit(endpoint.base_url)
    base, path = f"{parts.scheme}://{parts.netloc}", f"{parts.path or '/'}{'?' if parts.query else ''}{parts.query}"
    own = (parts.scheme, parts.netloc) == (api.scheme, api.netloc)
    headers, socket = (endpoint.headers, endpoint.socket) if own else ({}, None)
    return replace(endpoint, base_url=base, tls=parts.scheme == "https", headers=headers, socket=socket), path
