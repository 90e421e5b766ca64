"""What a new session changes: the old baseline beside the new one, and doubts about the new one's launches."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from pytest_llmperf.baseline.schema import Entry, Session, StoredLaunch
from pytest_llmperf.catalog import FAMILIES, METRICS, metric
from pytest_llmperf.stats.launches import LaunchValues

__all__ = ["Row", "compare", "launch_mean", "old_and_new", "two_modes"]

PRIMARY: Final = ("ttft_p50", "tpot_mean", "output_throughput")
"""Asked of many metrics, any rule finds two modes in some."""


@dataclass(frozen=True, slots=True)
class Row:
    """One metric, before and after."""

    metric: str
    unit: str
    better: Literal["lower", "higher"]
    before: float | None
    """Geometric mean of the session means, in ``unit``; None where there is no finite value."""
    after: float | None
    change: float | None
    """after / before - 1."""
    launches_before: int
    launches_after: int
    comparable: bool = True
    """False where the definitions differ, or how it was measured."""

    @property
    def worse(self) -> bool | None:
        """None where there is no change to speak of."""
        return None if not self.change else (self.change > 0) is (self.better == "lower")


def old_and_new(entry_before: Entry | None, session: Session) -> tuple[Row, ...]:
    """What ``session`` says beside what is stored; None: nothing is."""
    return compare(() if entry_before is None else entry_before.sessions, (session,))


def compare(
    before: Sequence[Session],
    after: Sequence[Session],
    definitions: tuple[Mapping[str, str], Mapping[str, str]] = ({}, {}),
) -> tuple[Row, ...]:
    """Metric by metric, latencies first, in the catalog's order; ``definitions`` are those of both sides."""
    names = {name for session in (*before, *after) for launch in session.launches for name in launch.metrics}
    order = sorted(METRICS, key=lambda name: METRICS[name].family.name not in FAMILIES)
    place = {name: number for number, name in enumerate(order)}
    ranked = sorted(names, key=lambda name: (place.get(name, len(place)), name))
    return tuple(row for name in ranked if (row := _row(name, before, after, definitions)) is not None)


def _row(
    name: str,
    before: Sequence[Session],
    after: Sequence[Session],
    definitions: tuple[Mapping[str, str], Mapping[str, str]],
) -> Row | None:
    try:
        entry = metric(name)
    except KeyError:  # of a later catalog
        return None
    (old, n_old), (new, n_new) = launch_mean(before, name), launch_mean(after, name)
    launches = [each for session in (*before, *after) for each in session.launches if name in each.metrics]
    alike = definitions[0].get(name) == definitions[1].get(name) and len({e.sources.get(name) for e in launches}) < 2
    same = alike or not (old and new)
    change = new / old - 1 if old and new is not None and same else None
    return Row(name, entry.unit, entry.better, old, new, change, n_old, n_new, same)


def launch_mean(sessions: Sequence[Session], name: str) -> tuple[float | None, int]:
    """Geometric mean of the sessions' geometric means (arithmetic ones where a value is not positive), and launches.

    None where no launch has the metric, or one of them has no finite value.
    """
    groups = [[launch.metrics[name] for launch in session.launches if name in launch.metrics] for session in sessions]
    groups = [group for group in groups if group]
    values = [value for group in groups for value in group]
    finite = [[value for value in group if value is not None] for group in groups]
    if not values or None in values:
        return None, len(values)
    positive = all(value > 0 for group in finite for value in group)
    means = [math.fsum(map(math.log, group) if positive else group) / len(group) for group in finite]
    mean = math.fsum(means) / len(means)
    return (math.exp(mean) if positive else mean), len(values)


def two_modes(sessions: Sequence[Session], metrics: Sequence[str] = PRIMARY) -> list[str]:
    """Metrics whose launches fall into two kinds, a sentence each; see ``stats.modes`` for how sure that is.

    Days that differ are no modes: some session must have launches of both kinds.
    """
    from pytest_llmperf.stats.modes import bimodal  # needs numpy

    launches = [_values(launch, session.id) for session in sessions for launch in session.launches]
    found = []
    for each in bimodal(launches, [name for name in metrics if all(name in one.metrics for one in launches)]):
        middle = math.sqrt(each.better * each.worse)
        kinds: dict[str, set[bool]] = {}
        for one in launches:
            kinds.setdefault(one.session, set()).add(one.metrics[each.metric] > middle)
        if any(len(sides) == 2 for sides in kinds.values()):
            apart = 100 * abs(each.worse / each.better - 1)
            found.append(f"{each.metric}: {each.n_worse} launches lie {apart:.0f} % from the other {each.n_better}: "
                         "two kinds of launch")  # fmt: skip
    return found


def _values(launch: StoredLaunch, session: str) -> LaunchValues:
    values = {name: math.inf if value is None else value for name, value in launch.metrics.items()}
    return LaunchValues(values, launch.order, launch.block, session, launch.n_requests, launch.n_failed)
