"""Transfer: make a run of a model trained on one domain on texts of another, to judge it there.

The run is one like any other, but for its in-distribution test: that is the one of the domain the model was trained on.
Fitted on the new texts, it could not see that they are new.
"""

import dataclasses
from collections.abc import Sequence
from pathlib import Path

import datasets
import numpy as np

from faithmeter.data.batch import Encoded, Ints
from faithmeter.data.splits import DataSpec, load_splits
from faithmeter.errors import InputError
from faithmeter.files import only_one
from faithmeter.models.classifier import Classifier
from faithmeter.performance import Floats, majority_performance, weighted_performance
from faithmeter.problems import PROBLEMS, require_classes
from faithmeter.progress import Reporter, Silent
from faithmeter.reports.transfer import AT_HOME, ELSEWHERE
from faithmeter.runs.results import TRANSFER, TRANSFER_KINDS, TRANSFER_MAJORITY, Result
from faithmeter.runs.run import Run
from faithmeter.runs.texts import encode
from faithmeter.statistics import Weights, bca_interval
from faithmeter.studies.adopt import adopt

# names of the same class, which everybody writes in these two ways
SYNONYMS = (frozenset(("neg", "negative")), frozenset(("pos", "positive")))


def transfer(path: str | Path, out: str | Path, data: DataSpec, *, reporter: Reporter | None = None) -> Run:
    """Make a run at `out` of a run's model on data of another domain, to be judged on its test texts.

    Nothing is trained on the data, so all texts of a file without a test split are test texts. The run at `path` must
    have been checked: its in-distribution test is used. Performance in and out of domain is stored as result rows. An
    existing run with the same settings is returned unchanged.
    """
    run, reporter = Run(path), reporter or Silent()
    home = run.config
    require_classes(home.problem, "`faithmeter transfer`")
    require_classes(PROBLEMS[data.problem], "`faithmeter transfer`")
    if home.reference is not None:
        raise InputError(f"{path} is already a run on another domain: name the run it was made from, {home.reference}.")
    classifier = run.classifier()
    if not run.checked:
        raise InputError(
            f"{path} has no in-distribution test, so it cannot be tested whether other texts are out-of-distribution. "
            f"Run `faithmeter check {path}` first."
        )
    data = _all_rows_tested(data.absolute(), reporter)
    _require_like_texts(home.data, data)
    data = _with_classes(data, home.labels, reporter)
    made = adopt(
        out,
        str(run.model_folder),
        data,
        masked_before=home.knows_masks,
        max_length=home.max_length,
        reference=run,
        reporter=reporter,
    )
    with only_one(made.path):
        if not any(row["kind"] == TRANSFER for row in made.results):
            made.store_results(TRANSFER_KINDS, _side_by_side(run, made, classifier))
    return made


def _all_rows_tested(data: DataSpec, reporter: Reporter) -> DataSpec:
    """Return the data with all rows of a single file as its test rows."""
    if data.data is None or data.test_data is not None or Path(data.data).is_dir():
        return data
    reporter.note(f"All texts of {data.data} are test texts: nothing is trained on them.")
    return dataclasses.replace(data, test_data=data.data)


def _require_like_texts(home: DataSpec, data: DataSpec) -> None:
    pairs, given = (spec.resolved().context is not None for spec in (home, data))
    if pairs != given:
        raise InputError(
            "The model was trained on pairs of texts: name the column of the second one with --context."
            if pairs
            else "The model was trained on single texts: this data has pairs, which it cannot read."
        )
    if home.both_texts != data.both_texts:
        raise InputError(
            "The model was trained to have both texts of a pair masked: pass --both-texts."
            if home.both_texts
            else "The model was not trained to have its context masked: leave out --both-texts."
        )


# ---------------------------------------------------------------------------------------------------- classes


def match_classes(labels: Sequence[str], classes: Sequence[str]) -> dict[str, str] | None:
    """Return for each label of the data the model's class that it surely is; None where that is not sure of any.

    By name, whatever the case, or by one of `SYNONYMS`. Numbers are names too: whether 0 is the first class of this
    model nobody can tell from outside. A model may have classes that the data lacks.
    """
    found: dict[str, str] = {}
    for label in labels:
        same = [name for name in classes if name == label]
        same = same or [name for name in classes if name.casefold() == label.casefold()]
        for names in SYNONYMS if not same else ():
            if label.casefold() in names:
                same = [name for name in classes if name.casefold() in names]
        if len(same) != 1 or same[0] in found.values():
            return None
        found[label] = same[0]
    return found


def _with_classes(data: DataSpec, classes: Sequence[str], reporter: Reporter) -> DataSpec:
    """Return the data with its labels named like the model's classes, and print the mapping."""
    # unchecked: whether the labels are ambiguous is tested after they are renamed here
    labels = load_splits(dataclasses.replace(data, classes=None), labels_known=True).labels
    said = data.new_names(labels)
    named = {label: said.get(label, label) for label in labels}
    matched = match_classes(list(dict.fromkeys(named.values())), classes)
    if matched is None:
        example = ",".join(f"{label}={name}" for label, name in zip(labels, classes, strict=False))
        raise InputError(
            f"The data's labels ({', '.join(named.values())}) do not match the model's classes "
            f"({', '.join(classes)}). Map them: --classes {example}, if that is what they mean."
        )
    taken = {label: matched[name] for label, name in named.items()}
    reporter.note(f"Classes, data to model: {', '.join(f'{label} is {name}' for label, name in taken.items())}.")
    # a difference of case alone is no other name
    other = [f"{label}={name}" for label, name in taken.items() if label.casefold() != name.casefold()]
    return dataclasses.replace(data, classes=",".join(other) or None)


# ------------------------------------------------------------------------------------------------ performance


def _side_by_side(run: Run, made: Run, classifier: Classifier) -> list[Result]:
    """Return the performance in and out of domain, by the same metric, and the class majority of each."""
    results = []
    for place, one in ((AT_HOME, run), (ELSEWHERE, made)):
        splits, metric = one.data(), made.config.metric
        detail = f"{place}: {one.config.data.resolved().name}"
        test = _encoded(classifier, splits.test)
        predicted = classifier.predict(test).argmax(dim=-1).cpu().numpy()
        results.append(_reached(metric, test, predicted, detail))
        majority = majority_performance(metric, np.array(splits.train["label"]), test.labels)
        results.append(Result(kind=TRANSFER_MAJORITY, value=majority, metric=metric, n=len(test), detail=detail))
    return results


def _encoded(classifier: Classifier, split: datasets.Dataset) -> Encoded:
    return encode(classifier, split, "test", Silent())


def _reached(metric: str, test: Encoded, predicted: Ints, detail: str) -> Result:
    gold = test.labels
    weighted = weighted_performance(metric, gold, predicted[:, None])

    def reached(weights: Weights) -> Floats:
        return weighted(weights)[:, 0]

    low, high = bca_interval(reached, len(gold), groups=test.sources()) or (None, None)
    value = float(reached(np.ones((1, len(gold))))[0])
    return Result(
        kind=TRANSFER, value=value, metric=metric, n=len(gold), low=low, high=high, over="observations", detail=detail
    )
