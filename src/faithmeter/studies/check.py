"""Check: is masking in-distribution for this model? Fits the in-distribution test and applies it to the test split."""

import shutil
from collections.abc import Sequence
from pathlib import Path

import datasets
import numpy as np
import torch

from faithmeter.data.batch import Encoded
from faithmeter.data.splits import Splits
from faithmeter.errors import InputError, require_choice
from faithmeter.files import damaged, is_done, new_folder, only_one, sum_of
from faithmeter.in_distribution.behaviour import AllMasked, all_masked
from faithmeter.in_distribution.masf import MaSF, fit_calibrated, fit_paper, masked_at_random, step_features
from faithmeter.in_distribution.power import power
from faithmeter.in_distribution.verdict import Verdict, dataset_verdict
from faithmeter.masking import MASK, STEPS, Purpose, random_stream
from faithmeter.models.classifier import Classifier
from faithmeter.models.operators import OPERATORS
from faithmeter.progress import Reporter, Silent
from faithmeter.reports.card import store_card
from faithmeter.reports.evidence import conclusion, evidence
from faithmeter.runs.commands import command_to_train_on
from faithmeter.runs.results import (
    ALL_MASKED_LOSS,
    ALL_MASKED_P,
    BEHAVIOUR,
    CHECKED_TEXTS,
    CLAIMED,
    PER_RATIO,
    POWER,
    UNMASKED,
    Result,
)
from faithmeter.runs.run import Run, RunLike, opened
from faithmeter.runs.texts import encode
from faithmeter.training.strategy import masked_copy

# More rows make the level no truer, and the stored test larger: 6,000 rows of RoBERTa-base are 1.3 GB.
ROWS = 6000
FORMS = ("calibrated", "paper")
KINDS = (*PER_RATIO, *CHECKED_TEXTS, *UNMASKED, *POWER, *BEHAVIOUR)


def check(
    path: RunLike,
    *,
    form: str = "calibrated",
    rows: int = ROWS,
    other: Sequence[str] = (),
    operator: str | None = None,
    reporter: Reporter | None = None,
) -> list[Verdict]:
    """Fit MaSF on the run's validation split, store it with the run, and judge the randomly masked test split.

    Tokens are removed as in the training of the model, or by the mask token. By another `operator` texts are judged
    against untouched ones, with the same fitted test, which is fitted first if it is not there.

    At most `rows` validation texts are used, drawn at random: the stored test grows with them. What the test can find
    is stored beside what it found, also in `other` texts, of another domain, where there are any.
    """
    require_choice("form", form, FORMS)
    run, reporter = opened(path), reporter or Silent()
    with only_one(run.path):
        if operator in (None, run.own_operator):
            return _check(run, form, rows, other, reporter)
        if not run.checked:
            _check(run, form, rows, other, reporter)
        return _check_by(run.by(str(operator)), other, reporter)


def _check_by(run: Run, other: Sequence[str], reporter: Reporter) -> list[Verdict]:
    """Judge test texts whose tokens are removed at random in a way that the model did not learn."""
    masf = run.in_distribution_test()
    if masf is None:
        raise InputError(
            "The paper's form compares with masked texts, not with untouched ones: check with --form calibrated first."
        )
    classifier, splits = run.classifier(), run.data(reporter)
    test = encode(classifier, splits.test, "test", reporter)
    (verdicts,) = judge(classifier, [masf], test, seed=run.config.seed, reporter=reporter)
    results = [result for verdict in verdicts for result in _results(verdict)]
    run.store_results(KINDS, [*results, *_beside(run, classifier, masf, test, splits, other, reporter)])
    return verdicts


def _beside(
    run: Run,
    classifier: Classifier,
    masf: MaSF,
    test: Encoded,
    splits: Splits,
    other: Sequence[str],
    reporter: Reporter,
) -> list[Result]:
    """Return what stands beside the verdicts: numbers of texts, what can be found, how the model behaves."""
    config, texts = run.config, zip(CHECKED_TEXTS, (masf.rows, len(test)), strict=True)
    results = [Result(kind=kind, value=count, metric="texts", n=count) for kind, count in texts]
    if masf.form == "calibrated":
        results += _power_results(classifier, masf, test, other, config.seed, reporter)
        results += _behaviour_results(all_masked(classifier, test, splits.train["label"], config.metric))
    return results


def _check(run: Run, form: str, rows: int, other: Sequence[str], reporter: Reporter) -> list[Verdict]:
    folder, measured = run.in_distribution_folder, run.measurements.exists()
    lost = damaged(folder) is not None or not folder.is_dir()
    if measured and (not run.measurement_settings.get("checked") or (run.checked and not lost)):
        how = "with the in-distribution test it has" if run.checked else "without an in-distribution test"
        raise InputError(
            f"{run.path} was measured {how}, and a new one would not fit those results. {_measure_anew(run)}"
        )
    if form == "paper":
        reporter.warn(
            "The paper's form does not hold its level: up to a sixth of typical texts fall below 5 %. Compare its "
            "p-values with the paper's; they are no verdict on this model."
        )
    if lost:
        is_done(folder, reporter.warn)  # sets aside what is left of it
    carried = None if run.config.reference is None else _of_the_reference(run, form, rows, reporter)
    if measured and not lost:  # the result rows are lost, and the test is not
        carried = MaSF.load(folder)
    run.store_results(KINDS, [])  # of an earlier check, whose test is about to be replaced
    config, classifier, splits = run.config, run.classifier(), run.data(reporter)
    test = encode(classifier, splits.test, "test", reporter)
    masf = carried or _fitted(run, classifier, splits.validation, test, form, rows, reporter)
    if measured and run.measurement_settings.get("in_distribution", sum_of(folder)) != sum_of(folder):
        shutil.rmtree(folder)
        raise InputError(
            f"This in-distribution test differs from the one that {run.path} was measured with: check with the same "
            f"--form and --rows, on the same kind of machine. Otherwise: {_measure_anew(run)}"
        )
    # that it was trained on masks is a claim: the test against unmasked texts is shown as well
    doubted = [masf.against_unmasked()] if form == "calibrated" and run.masks == CLAIMED else []
    verdicts, *others = judge(classifier, [masf, *doubted], test, seed=config.seed, reporter=reporter)
    results = [result for verdict in verdicts for result in _results(verdict)]
    results += [result for unmasked in others for verdict in unmasked for result in _unmasked_results(verdict)]
    results += _beside(run, classifier, masf, test, splits, other, reporter)
    kinds = KINDS if form == "calibrated" else PER_RATIO[1:]  # the paper's form allows no verdict
    run.store_results(KINDS, [result for result in results if result.kind in kinds])
    store_card(run)
    return verdicts


def _measure_anew(run: Run) -> str:
    return f"Remove {run.measurements} first, then check and measure again."


def in_words(path: str | Path, operator: str | None = None) -> str:
    """Return whether masking may be trusted on a run, what that rests on, and what to do if not."""
    run = Run(path, operator)
    rows = run.results
    lines = [f"{title}: {sentence}" for title, sentence in evidence(rows)]
    said = [] if run.operator == MASK else [f"Here a token is masked by {run.operator}. {OPERATORS[run.operator].does}"]
    return "\n".join([*said, conclusion(rows, command_to_train_on(run)), *lines])


def _of_the_reference(run: Run, form: str, rows: int, reporter: Reporter) -> MaSF:
    """Return the in-distribution test of the domain that the model was trained on."""
    folder, config = run.in_distribution_folder, run.config
    if not folder.is_dir():  # it was damaged
        home = Run(str(config.reference)).in_distribution_folder
        with new_folder(folder) as new:
            shutil.copytree(home, new, dirs_exist_ok=True)
    masf = MaSF.load(folder)
    if masf.form != form:
        raise InputError(
            f"{run.path} is judged by the in-distribution test of {config.reference}, whose form is {masf.form}: pass "
            f"--form {masf.form}."
        )
    if rows not in (ROWS, masf.rows):
        reporter.warn(f"--rows {rows} is ignored: no test is fitted on this run.")
    reporter.note(
        f"The in-distribution test is that of {config.reference}, fitted on {masf.rows} of its validation texts. It "
        "tests whether the texts of this other domain, masked or not, are like those the model was trained on: at 0 % "
        "it tests only the domain."
    )
    return masf


def _fitted(
    run: Run,
    classifier: Classifier,
    chosen: datasets.Dataset,
    test: Encoded,
    form: str,
    rows: int,
    reporter: Reporter,
) -> MaSF:
    """Fit the test on at most `rows` validation texts, and report cautions."""
    config = run.config
    if len(chosen) > rows:
        reporter.note(
            f"The in-distribution test is fitted on {rows} of {len(chosen)} validation texts, drawn at random."
        )
        chosen = chosen.select(
            sorted(random_stream(config.seed, Purpose.REFERENCE_ROWS).permutation(len(chosen))[:rows])
        )
    validation = encode(classifier, chosen, "validation", reporter)
    masf = _fit(run, classifier, validation, form, plain=not config.knows_masks, reporter=reporter)
    for caution in (masf.caution, _of_two_sources(validation, test)):
        if caution is not None:
            reporter.warn(caution)
    return masf


def _of_two_sources(validation: Encoded, test: Encoded) -> str | None:
    """Return a warning if test texts are much longer or shorter than those that the test is fitted on."""
    before, now = (int(np.median(split.lengths)) for split in (validation, test))
    if max(before, now) <= 1.5 * min(before, now):
        return None
    return (
        f"Validation texts have a median of {before} tokens and test texts of {now}, so they are not from one source: "
        "the share of texts below 5 % is not 5 % even where masking is in-distribution. For an exact level make a run "
        "whose validation texts are like its test texts (--validation-data)."
    )


def _fit(run: Run, classifier: Classifier, validation: Encoded, form: str, *, plain: bool, reporter: Reporter) -> MaSF:
    """Fit the test and store it with the run.

    A plain model is judged against its unmasked texts; against masked ones, random masking would pass by construction.
    """
    seed, folder = run.config.seed, run.in_distribution_folder
    if form == "paper":
        copy = validation if plain else masked_copy(validation, mask_context=False, seed=seed)
        with reporter.bar("Fitting", len(validation)) as advance:
            masf = fit_paper(classifier.features(copy, progress=advance), seed=seed)
        masf.save(folder)
        return masf
    steps = range(1) if plain else range(STEPS + 1)
    with reporter.bar("Fitting", len(steps) * len(validation)) as advance:
        features = step_features(classifier, validation, seed=seed, steps=steps, progress=advance)
        lengths = torch.from_numpy(validation.lengths)
        groups = torch.from_numpy(validation.sources())
        return fit_calibrated(features, lengths, steps=len(steps), seed=seed, groups=groups, folder=folder)


def judge(
    classifier: Classifier,
    masfs: Sequence[MaSF],
    test: Encoded,
    *,
    seed: int,
    reporter: Reporter | None = None,
) -> list[list[Verdict]]:
    """Return each test's verdicts on a split, one for each masking ratio, its tokens masked at random."""
    lengths, groups = torch.from_numpy(test.lengths), torch.from_numpy(test.sources())
    verdicts: list[list[Verdict]] = [[] for _ in masfs]
    with (reporter or Silent()).bar("Checking", (STEPS + 1) * len(test)) as advance:
        for step in range(STEPS + 1):
            found = torch.zeros(len(masfs), 2, len(test), dtype=torch.float64)
            for batch in masked_at_random(test, step, (seed, Purpose.CHECK_MASKS)).batches(classifier.tokens_per_pass):
                # two numbers per text and test are kept, not its features, which are 80 kB per text for RoBERTa-base
                features, rows = classifier.predict_with_features(batch)[1], batch.rows
                for masf, p_values in zip(masfs, found, strict=True):
                    p_values[:, rows] = torch.stack(masf.p_values(features, lengths[rows], rows, step))
                advance(len(batch))
            for masf, (own, outside), mine in zip(masfs, found, verdicts, strict=True):
                mine.append(dataset_verdict(masf, own, outside, lengths, step, groups))
    return verdicts


def _results(verdict: Verdict) -> list[Result]:
    n, ratio = verdict.random.rows, verdict.step / STEPS
    values = (
        verdict.anywhere.dataset_p_value,
        verdict.random.simes_p_value,
        verdict.random.share_below,
        verdict.anywhere.share_below,
    )
    return [
        Result(kind=kind, value=value, metric="p", masking_ratio=ratio, n=n)
        for kind, value in zip(PER_RATIO, values, strict=True)
    ]


def _unmasked_results(verdict: Verdict) -> list[Result]:
    n, ratio = verdict.random.rows, verdict.step / STEPS
    values = (verdict.anywhere.dataset_p_value, verdict.anywhere.share_below)
    return [
        Result(kind=kind, value=value, metric="p", masking_ratio=ratio, n=n)
        for kind, value in zip(UNMASKED, values, strict=True)
    ]


def _power_results(
    classifier: Classifier, masf: MaSF, test: Encoded, other: Sequence[str], seed: int, reporter: Reporter
) -> list[Result]:
    """Return what share of spoilt texts the test finds: a verdict means little where nothing could be found."""
    elsewhere = classifier.encode(other) if other else None
    with reporter.bar("Asking what can be found", 2 * len(test) + len(other)) as advance:
        powers = power(classifier, masf, test, seed=seed, other=elsewhere, progress=advance)
    return [
        Result(
            kind=f"check_power_{one.spoilt}",
            value=one.share,
            metric="p",
            n=one.texts,
            low=one.interval[0],
            high=one.interval[1],
            over="observations",
        )
        for one in powers
    ]


def _behaviour_results(found: AllMasked) -> list[Result]:
    """Return how the model behaves with everything masked: worse than the majority, more confident than it may be."""
    low, high = found.interval or (None, None)
    return [
        Result(kind=ALL_MASKED_P, value=found.p_value, metric="p", masking_ratio=None, n=found.texts),
        Result(
            kind=ALL_MASKED_LOSS,
            value=found.excess_loss,
            metric="nats",
            n=found.texts,
            low=low,
            high=high,
            over="observations",
        ),
    ]
