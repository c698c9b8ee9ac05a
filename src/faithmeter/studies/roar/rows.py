"""From finished trainings to result rows: curves, areas, sparsity and time of ROAR and Recursive ROAR."""

from collections.abc import Iterator, Sequence

import numpy as np
import scipy

from faithmeter.masking import STEPS
from faithmeter.measuring.curves import Floats, area_between_curves
from faithmeter.measuring.retraining import (
    ALL_MASKED,
    IMPORTANCE,
    RANDOM,
    RECURSIVE,
    RELATIVE,
    UNMASKED,
    Node,
    last_step,
    rises,
    step_node,
)
from faithmeter.runs.results import Result
from faithmeter.statistics import mean_interval
from faithmeter.studies.roar.experiment import RoarRun


def summarise(run: RoarRun) -> list[Result]:
    """Return the result rows of an experiment; means over the seeds, with BCa intervals where there are several."""
    config = run.config
    results: list[Result] = []
    for protocol in config.protocols:
        random = _curves(run, protocol, RANDOM)
        results += _curve_rows(run, protocol, RANDOM, random)
        for measure in config.measures:
            curves = _curves(run, protocol, measure)
            results += _curve_rows(run, protocol, measure, curves)
            results += _area_rows(run, protocol, measure, curves, random)
    for measure in config.measures:
        results += _sparsity_rows(run, measure)
        results += _time_rows(run, measure)
    astray = [seed for seed in config.seeds if run.outcome(Node(seed, UNMASKED))["warnings"]]
    if astray:  # reported, not hidden
        results.append(
            Result(kind="roar_not_converged", value=float(len(astray)), metric=config.metric, n=len(config.seeds))
        )
    return [*results, *_time_rows(run, RANDOM)]


def kind(protocol: str, what: str) -> str:
    """Return the kind of a result row, such as `recursive_roar_racu`."""
    return f"{'recursive_roar' if protocol == RECURSIVE else 'roar'}_{what}"


def _nodes(run: RoarRun, seed: int, protocol: str, measure: str) -> list[Node]:
    """Return the trainings along a curve, from nothing masked on; steps of a tenth end with everything masked."""
    steps = run.config.steps
    between = [step_node(seed, protocol, measure, step) for step in range(1, last_step(steps) + 1)]
    return [Node(seed, UNMASKED), *between, *([Node(seed, ALL_MASKED)] if steps == RELATIVE else [])]


def _curves(run: RoarRun, protocol: str, measure: str) -> Floats:
    """Return the (seeds, steps + 1) performances."""
    return np.array(
        [
            [run.outcome(node)["performance"] for node in _nodes(run, seed, protocol, measure)]
            for seed in run.config.seeds
        ]
    )


def _mean(run: RoarRun, name: str, values: Sequence[float] | Floats, measure: str, **where: float | None) -> Result:
    array = np.asarray(values, dtype=np.float64)
    several = len(array) > 1
    low, high = (mean_interval(array) if several else None) or (None, None)
    ratio, tokens = where.get("ratio"), where.get("tokens")
    return Result(
        kind=name,
        value=float(array.mean()),
        metric=run.config.metric,
        masking_ratio=ratio,
        n=len(array),
        measure=measure,
        low=low,
        high=high,
        over="seeds" if several else None,
        tokens=None if tokens is None else int(tokens),
    )


def _curve_rows(run: RoarRun, protocol: str, measure: str, curves: Floats) -> Iterator[Result]:
    for step in range(curves.shape[1]):
        place = {"ratio": step / STEPS} if run.config.steps == RELATIVE else {"tokens": step}
        yield _mean(run, kind(protocol, "performance"), curves[:, step], measure, **place)


def _area_rows(run: RoarRun, protocol: str, measure: str, curves: Floats, random: Floats) -> Iterator[Result]:
    acu, racu = area_between_curves(curves, random)
    yield _mean(run, kind(protocol, "acu"), acu, measure)
    if run.config.steps == RELATIVE:  # ten tokens are not all: there is no end to relate the area to
        yield _mean(run, kind(protocol, "racu"), racu, measure)
    if len(acu) > 1:  # one-sided, Student's: a bootstrap of a few seeds is too sure of itself
        p_value = (
            0.0
            if acu.std() == 0 and acu[0] > 0
            else float(scipy.stats.ttest_1samp(acu, 0, alternative="greater").pvalue)
        )
        yield Result(kind=kind(protocol, "p_value"), value=p_value, metric="p", n=len(acu), measure=measure)
    rise = rises(curves, random, run.outcome(Node(run.config.seeds[0], UNMASKED))["rows"])
    if rise is not None:
        yield Result(kind=kind(protocol, "rise"), value=rise, metric=run.config.metric, n=len(curves), measure=measure)


def _sparsity_rows(run: RoarRun, measure: str) -> Iterator[Result]:
    found = [run.outcome(Node(seed, IMPORTANCE, measure)) for seed in run.config.seeds]
    for step in range(STEPS + 1):
        yield _mean(run, "roar_sparsity", [one["sparsity"][step] for one in found], measure, ratio=step / STEPS)
        yield _mean(run, "roar_sparsity_tokens", [one["sparsity_tokens"][step] for one in found], measure, tokens=step)


def _time_rows(run: RoarRun, measure: str) -> Iterator[Result]:
    """Yield how many trainings a measure took, and the seconds of each, explaining apart."""
    config = run.config
    nodes = {
        node
        for seed in config.seeds
        for protocol in config.protocols
        for node in _nodes(run, seed, protocol, measure)
        if node.kind not in (UNMASKED, ALL_MASKED)
    }
    outcomes = [run.outcome(node) for node in nodes]
    first = [] if measure == RANDOM else [run.outcome(Node(s, IMPORTANCE, measure))["seconds"] for s in config.seeds]
    explaining = sum(first) + sum(outcome["seconds_explaining"] for outcome in outcomes)
    training = sum(outcome["seconds_training"] for outcome in outcomes)
    for name, value in (("trainings", len(nodes)), ("seconds_training", training), ("seconds_explaining", explaining)):
        yield Result(
            kind=f"roar_{name}", value=float(value), metric="seconds", split="train", n=len(nodes), measure=measure
        )
