"""Audit: every other way in which the literature judges explanations, on one run, and whether the judges agree.

Every judged batch is a file, so an audit that was stopped goes on where it was, and ends in the same rows.
"""

import dataclasses
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet

from faithmeter.batch import Ints
from faithmeter.classifier import Classifier, load_classifier
from faithmeter.data import Splits, load_splits
from faithmeter.errors import InputError, nearest
from faithmeter.files import new_folder, only_one, write_bytes, write_json
from faithmeter.importance import IMPORTANCE_MEASURES, ImportanceMeasure, measures_of
from faithmeter.jobs.measuring import WORTH_SAYING, distinct, duration, seconds_per_token
from faithmeter.jobs.summarising import parquet
from faithmeter.jobs.training import encode, fresh_classifier, training_defaults
from faithmeter.judges import Columns
from faithmeter.judges.agreement import agreements
from faithmeter.judges.battery import JUDGES, Bench, Judge
from faithmeter.judges.known_token import PLACES, known_token_splits, truth_of
from faithmeter.judges.rationales import TASK_MARKS, marks_of, rationale_tokens, rationales_of
from faithmeter.masking import Purpose, random_stream
from faithmeter.performance import performance
from faithmeter.progress import Reporter, Silent
from faithmeter.results import Result
from faithmeter.run import Run
from faithmeter.statistics import mean_interval
from faithmeter.training import fine_tune

TOKENS_AT_ONCE = 1024  # of text: what is lost when an audit is killed
KNOWN_TOKEN_ROWS = 4000  # to learn the known token from: plenty for one word
SOLVED = 0.99
KIND = "audit_"


@dataclass(frozen=True)
class AuditOptions:
    """What to judge, and by whom; nothing named means every judge and every measure that can and is not dear.

    `rows` are test rows, drawn at random; each judge has a number of its own. `place` is where the known token goes;
    `rationales` the column with what people marked as the reason; `adversary_steps` how long explanations are attacked.
    """

    judges: tuple[str, ...] | None = None
    measures: tuple[str | ImportanceMeasure, ...] | None = None
    rows: int | None = None
    seed: int = 0
    place: str = "end"
    rationales: str | None = None
    adversary_steps: int = 500

    def __post_init__(self) -> None:
        for name in self.judges or ():
            if name not in JUDGES:
                raise InputError(f"There is no judge {name!r}.{nearest(name, JUDGES)} There are {', '.join(JUDGES)}.")
        if self.place not in PLACES:
            raise InputError(f"There is no place {self.place!r}: choose {' or '.join(PLACES)}.")


def audit(path: str | Path, options: AuditOptions | None = None, *, reporter: Reporter | None = None) -> Run:
    """Let the judges judge importance measures on a run's test texts, and store what they say as result rows."""
    run, options, reporter = Run(path), options or AuditOptions(), reporter or Silent()
    classifier = run.classifier()
    measures = [IMPORTANCE_MEASURES["random"], *_measures(options, classifier)]
    run.judgements.mkdir(exist_ok=True)
    with only_one(run.judgements):
        plain = _as_it_is(run, options, classifier, reporter)
        for judge in _judges(run, options):
            settings = _same_settings(run, judge, options)
            bench = plain
            if judge.name == "known-token":
                bench = _known_token(run, options, reporter)
            elif judge.name == "plausibility":
                bench = _plausibility(run, options, plain)
            (run.judgements / judge.name).mkdir(exist_ok=True)
            write_json(run.judgements / judge.name / "settings.json", settings)
            _judge_all(run, judge, bench, [one for one in measures if judge.fits(one)], options, reporter)
        _store(run)
    return run


def _measures(options: AuditOptions, classifier: Classifier) -> list[ImportanceMeasure]:
    if options.measures is not None:
        return distinct(options.measures, classifier)
    names = measures_of(classifier.model.config.model_type)
    # beam search takes as long as all the others, and ensembles explain again what their members do
    return [row for name in names if (row := IMPORTANCE_MEASURES[name]).family != "ensemble" and name != "beam"]


def _judges(run: Run, options: AuditOptions) -> list[Judge]:
    """Return the judges that were named, or all but the dear one; of human reasons only where there are any."""
    if options.judges is not None:
        return [JUDGES[name] for name in options.judges]
    there = options.rationales is not None or run.config.data.resolved().name in TASK_MARKS
    left_out = ("adversarial",) if there else ("adversarial", "plausibility")  # hours, where the others take minutes
    return [judge for judge in JUDGES.values() if judge.name not in left_out]


# ------------------------------------------------------------------------------------------------- benches


def _as_it_is(run: Run, options: AuditOptions, classifier: Classifier, reporter: Reporter) -> Bench:
    test = encode(classifier, run.data().test, "test", reporter)
    return Bench(classifier, test, run.in_distribution_test(), options.seed, adversary_steps=options.adversary_steps)


def _plausibility(run: Run, options: AuditOptions, plain: Bench) -> Bench:
    """Return the run's model and texts, with the tokens that people marked."""
    config = run.config
    marks = marks_of(config.data.resolved(), options.rationales)
    test = load_splits(config.data, keep=marks.columns).test
    contexts = list(test["context"]) if "context" in test.column_names else None
    truth = rationale_tokens(plain.classifier, list(test["text"]), contexts, rationales_of(test, marks))
    return dataclasses.replace(plain, truth=truth)


def _known_token(run: Run, options: AuditOptions, reporter: Reporter) -> Bench:
    """Return a model of the run's kind that was trained to read one known word, and texts with that word in them."""
    config, folder = run.config, run.judgements / "known-token"
    splits = known_token_splits(run.data(), place=options.place, seed=options.seed)
    if not (folder / "model").is_dir():
        _learn_known_token(run, splits, folder, reporter)
    classifier = load_classifier(str(folder / "model"), splits.labels, max_length=config.max_length)
    test = encode(classifier, splits.test, "test", reporter)
    return Bench(classifier, test, None, options.seed, truth_of(classifier, splits.test))


def _learn_known_token(run: Run, splits: Splits, folder: Path, reporter: Reporter) -> None:
    """Train as the run was trained, and keep the model and how well it does."""
    config = run.config
    training = config.training or training_defaults(config.model, config.data.resolved())
    few = splits.train.select(range(min(KNOWN_TOKEN_ROWS, len(splits.train))))
    classifier = fresh_classifier(
        config.model, splits, seed=training.seed, max_length=config.max_length, vectors=config.vectors
    )
    reporter.note(f"The known-token judge trains a model of its own, on {len(few)} texts.")
    train, validation, test = (
        encode(classifier, part, name, reporter)
        for name, part in (("train", few), ("validation", splits.validation), ("test", splits.test))
    )
    folder.mkdir(exist_ok=True)
    fine_tune(
        classifier,
        train,
        validation,
        training,
        metric="accuracy",
        checkpoints=folder / "checkpoints",
        reporter=reporter,
    )
    reached = performance("accuracy", test.labels, classifier.predict(test).argmax(dim=-1).cpu().numpy())
    with new_folder(folder / "model") as new:
        classifier.save(new)
        write_json(new / "known_token.json", {"accuracy": reached, "rows": len(test)})
    if reached < SOLVED:
        reporter.warn(
            f"the model reads the known token in {100 * reached:.1f} % of texts only, so that it need not be what "
            "decides: what this judge says is not sure."
        )


# ------------------------------------------------------------------------------------------------- judging


def _same_settings(run: Run, judge: Judge, options: AuditOptions) -> dict[str, Any]:
    """Return what a judge works with; refuse to mix that with stored judgements of other settings or weights."""
    folder = run.judgements / judge.name
    settings: dict[str, Any] = {
        "rows": options.rows or judge.rows,
        "seed": options.seed,
        "checked": run.checked,
        "weights": run.weights,
        "faithmeter": metadata.version("faithmeter"),
    }
    settings |= {"place": options.place} if judge.name == "known-token" else {}
    settings |= {"adversary_steps": options.adversary_steps} if judge.name == "adversarial" else {}
    settings |= {"rationales": options.rationales} if judge.name == "plausibility" else {}
    file = folder / "settings.json"
    if file.exists():
        stored = json.loads(file.read_text(encoding="utf-8"))
        differing = [key for key in settings if stored.get(key) != settings[key]]
        if differing:
            raise InputError(
                f"{folder} holds judgements with another {' and '.join(differing)}, which do not compare with these. "
                f"Use the same settings ({stored}), or remove {folder} first."
            )
    return settings


def _judge_all(
    run: Run,
    judge: Judge,
    bench: Bench,
    measures: Sequence[ImportanceMeasure],
    options: AuditOptions,
    reporter: Reporter,
) -> None:
    """Judge the measures on the judge's rows, leaving out the batches that are done."""
    rows = _rows(bench, options.rows or judge.rows, options.seed)
    seconds = _estimated_seconds(judge, bench, measures, rows)
    if seconds > WORTH_SAYING and not any((run.judgements / judge.name / one.name).is_dir() for one in measures):
        reporter.note(
            f"{judge.name}, {len(measures)} measures on {len(rows)} texts, will take about {duration(seconds)}."
        )
    with reporter.bar(judge.name, len(rows) * len(measures)) as advance:
        for one in measures:
            for number, batch in enumerate(bench.test.batches(TOKENS_AT_ONCE, rows)):
                shard = run.judgements / judge.name / one.name / f"{number:05d}.parquet"
                if not shard.exists():
                    shard.parent.mkdir(exist_ok=True)
                    columns = judge.judge(bench, batch, one)
                    write_bytes(shard, parquet(pyarrow.table({"row": batch.rows.numpy(), **columns})))
                advance(len(batch))


def _estimated_seconds(judge: Judge, bench: Bench, measures: Sequence[ImportanceMeasure], rows: Ints) -> float:
    """Return about how long a judge will take; what is explained already, or by who knows whom, counts for nothing."""
    pace, total = seconds_per_token(bench.classifier, bench.test), 0.0
    explained = {name for name, _ in bench.known}
    for row in rows.tolist():
        part = slice(bench.test.offsets[row], bench.test.offsets[row + 1])
        tokens = int(bench.test.maskable[part].sum())
        explaining = [
            0.0 if one.name in explained and judge.name in ("erasure", "fidelity", "sparsity") else one.passes(tokens)
            for one in measures
            if one.passes is not None
        ]
        passes = sum(judge.passes(bench, each) for each in explaining)
        total += passes * int(bench.test.lengths[row])
    return total * pace


def _rows(bench: Bench, count: int, seed: int) -> Ints:
    """Return the texts to judge, drawn at random; of texts with a known truth, only those in which it is."""
    order = random_stream(seed, Purpose.AUDITED_ROWS).permutation(len(bench.test))
    if bench.truth is not None:
        of_row = np.repeat(np.arange(len(bench.test)), bench.test.lengths)
        true = np.bincount(of_row[bench.truth], minlength=len(bench.test))
        order = order[true[order] > 0]
        if not len(order):
            raise InputError("No test text has a token that is known to matter, so there is nothing to judge by.")
    return order[:count]


# ------------------------------------------------------------------------------------------------- results


def read_judgements(run: Run, judge: str) -> dict[str, Columns]:
    """Return what a judge said, by measure and column, in the order of the dataset rows."""
    found: dict[str, Columns] = {}
    for folder in sorted((run.judgements / judge).iterdir()) if (run.judgements / judge).is_dir() else ():
        shards = sorted(folder.glob("*.parquet"))
        if shards and folder.name != "model":
            table = pyarrow.concat_tables([pyarrow.parquet.read_table(shard) for shard in shards])
            table = table.sort_by([("row", "ascending")])
            found[folder.name] = {
                name: table[name].to_numpy().astype(np.float64) for name in table.column_names if name != "row"
            }
    return found


def _store(run: Run) -> None:
    """Turn everything that was judged on the run into result rows."""
    judged = {name: read_judgements(run, name) for name in JUDGES}
    results = [
        _result(judge, measure, column, values)
        for judge, measures in judged.items()
        for measure, columns in measures.items()
        for column, values in columns.items()
        if not np.isnan(values).all()
    ]
    known = run.judgements / "known-token" / "model" / "known_token.json"
    if known.exists():
        reached = json.loads(known.read_text(encoding="utf-8"))
        results.append(
            Result(f"{KIND}known-token_accuracy", reached["accuracy"], "accuracy", "test", None, reached["rows"])
        )
    results += [
        Result(
            f"{KIND}agreement",
            pair.value,
            "spearman",
            "test",
            None,
            pair.measures,
            low=pair.low,
            high=pair.high,
            over="observations",
            detail=f"{pair.first} | {pair.second}",
        )
        for pair in agreements(_scores(run, judged))
    ]
    stored = {row["kind"] for row in run.results if row["kind"].startswith(KIND)}
    run.store_results(stored | {result.kind for result in results}, results)


def _result(judge: str, measure: str, column: str, values: np.ndarray[Any, np.dtype[np.float64]]) -> Result:
    name, _, detail = column.partition("@")
    known = values[~np.isnan(values)]
    low, high = mean_interval(known) or (None, None)
    return Result(
        f"{KIND}{judge}_{name}", float(known.mean()), name, "test", None, len(known), measure, low, high,
        "observations", detail=detail or None,
    )  # fmt: skip


def _scores(run: Run, judged: Mapping[str, Mapping[str, Columns]]) -> dict[str, dict[str, Any]]:
    """Return for each judge's scores the values a text of each measure, more is better; masking's are its areas.

    Random importance is left out: every judge tells it from the others, which is no sign that they agree on those.
    """
    scores: dict[str, dict[str, Any]] = {}
    file = run.path / "observations.parquet"
    if file.exists():
        table = pyarrow.parquet.read_table(file).sort_by([("row", "ascending")])
        names, areas = table["measure"].to_numpy(zero_copy_only=False), table["acu"].to_numpy()
        scores["masking: ACU"] = {name: areas[names == name] for name in dict.fromkeys(names.tolist())}
    for judge in JUDGES.values():
        for column, more_is_better in judge.scores.items():
            found = {}
            for measure, columns in judged[judge.name].items():
                like = [values for name, values in columns.items() if name.partition("@")[0] == column]
                if like and measure != "random":
                    found[measure] = (1 if more_is_better else -1) * np.mean(like, axis=0)
            if found:
                scores[f"{judge.name}: {column.replace('_', ' ')}"] = found
    return scores
