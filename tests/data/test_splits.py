import gzip
import json
import random
from collections import Counter
from dataclasses import asdict

import pyarrow
import pyarrow.parquet
import pytest
from conftest import sentiment_rows

from faithmeter.data.splits import DataSpec, load_splits, match_labels
from faithmeter.data.tables import read_rows, texts_of
from faithmeter.data.tasks import TASKS, append_known_token, find_task
from faithmeter.errors import InputError
from faithmeter.runs.commands import as_command
from faithmeter.runs.run import Run, RunConfig

# FMM Table 2: rows of the hub's train, and what 80/20 makes of them
PAPER_SIZES = {
    "boolq": (9427, 7542, 1885), "cb": (250, 200, 50), "cola": (8551, 6841, 1710), "imdb": (25000, 20000, 5000),
    "mnli": (392702, 314162, 78540), "mrpc": (3668, 2934, 734), "qnli": (104743, 83794, 20949),
    "qqp": (363846, 291077, 72769), "rte": (2490, 1992, 498), "sst2": (67349, 53879, 13470),
    "babi-1": (10000, 8000, 2000),
}  # fmt: skip


def test_twenty_per_cent_of_train_rounds_to_the_papers_sizes():
    for rows, train, validation in PAPER_SIZES.values():
        assert (round(0.8 * rows), rows - round(0.8 * rows)) == (train, validation)


def test_the_table_has_every_dataset_of_the_papers():
    fmm = "boolq cb cola imdb mnli mrpc qnli qqp rte snli sst2 babi-1 babi-2 babi-3 mimic-anemia mimic-diabetes"
    others = "sst esnli sst2-known-token yelp amazon-digital-music amazon-pantry amazon-instruments toxic-comments"
    assert set((fmm + " " + others).split()) <= set(TASKS)
    metrics = {name: TASKS[name].metric for name in ("boolq", "cb", "cola", "imdb", "babi-2", "snli", "qqp")}
    assert metrics == {
        "boolq": "accuracy", "cb": "macro-f1", "cola": "matthews", "imdb": "macro-f1", "babi-2": "micro-f1",
        "snli": "accuracy", "qqp": "macro-f1",
    }  # fmt: skip
    epochs = {name: TASKS[name].epochs for name in ("boolq", "cb", "imdb", "mrpc", "rte", "babi-3")}
    assert epochs == {"boolq": 15, "cb": 50, "imdb": 10, "mrpc": 20, "rte": 30, "babi-3": 20}


@pytest.mark.parametrize("name", ["SST2", "sst2", "bAbI-1", "babi1", "rotten_tomatoes"])
def test_a_task_is_found_however_it_is_written(name):
    assert find_task(name).name.replace("-", "") == name.lower().replace("-", "").replace("_", "")


def test_an_unknown_task_gets_the_nearest_name():
    with pytest.raises(InputError, match="Did you mean 'sst2'"):
        find_task("sts2")


@pytest.mark.shared
@pytest.mark.parametrize(
    ("task", "train", "validation", "test"),
    [
        ("sst2", 53879, 13470, 872),
        ("cola", 6841, 1710, 1043),
        ("rte", 1992, 498, 277),
        ("mrpc", 2934, 734, 408),
        ("cb", 200, 50, 56),
        ("snli", 20000, 9842, 9824),
        ("imdb", 10000, 2500, 5000),
        ("babi-1", 8000, 2000, 1000),
        ("babi-3", 1000, 925, 1000),
        ("sst", 6920, 872, 1821),
        ("eraser-movies", 1600, 200, 199),
        ("davidson-hate", 19783, 2500, 2500),
        ("rotten-tomatoes", 8530, 1066, 1066),
        ("ag-news", 8001, 2000, 7600),
        ("tweeteval-hate", 9000, 1000, 2970),
        ("cad-imdb", 3414, 490, 976),
    ],
)
def test_a_named_task_runs_from_files_with_the_published_sizes(shared, task, train, validation, test):
    splits = load_splits(DataSpec(task=task, data_dir=str(shared)))
    assert (len(splits.train), len(splits.validation), len(splits.test)) == (train, validation, test)
    assert set(splits.train["label"]) == set(range(len(splits.labels)))
    assert ("context" in splits.train.column_names) == (TASKS[task].context is not None)


@pytest.mark.shared
def test_a_task_without_train_files_is_refused_in_words(shared):
    with pytest.raises(InputError, match=r"qnli has no train split .* cannot be trained"):
        load_splits(DataSpec(task="qnli", data_dir=str(shared)))


@pytest.mark.parametrize("kind", ["csv", "tsv", "jsonl", "jsonl.gz", "parquet"])
@pytest.mark.parametrize("labels", [("no", "yes"), (0, 1), (1, 5)])
def test_files_of_every_kind_and_labels_of_every_type_give_the_same_splits(tmp_path, kind, labels):
    rows = [{"t": f'text, {i} "quoted"', "l": labels[i % 2]} for i in range(40)]
    path = tmp_path / f"mine.{kind}"
    if kind == "parquet":
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    elif kind == "jsonl.gz":
        path.write_bytes(gzip.compress("".join(json.dumps(row) + "\n" for row in rows).encode()))
    elif kind == "jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    else:
        separator = "," if kind == "csv" else "\t"
        cells = [["t", "l"], *(['"' + row["t"].replace('"', '""') + '"', str(row["l"])] for row in rows)]
        path.write_text("\n".join(separator.join(cell) for cell in cells))
    splits = load_splits(DataSpec(data=str(path), text="t", label="l"))
    assert splits.labels == tuple(map(str, labels))
    assert (len(splits.train), len(splits.validation), len(splits.test)) == (26, 6, 8)
    texts = [text for split in (splits.train, splits.validation, splits.test) for text in split["text"]]
    assert sorted(texts) == sorted(row["t"] for row in rows)


def test_labels_that_are_numbers_are_ordered_as_numbers(write):
    rows = [{"text": str(i), "label": ("10", "9", "2")[i % 3]} for i in range(30)]
    assert load_splits(DataSpec(data=str(write("mine.csv", rows)))).labels == ("2", "9", "10")


def test_a_text_that_says_na_or_null_stays_a_text(write):
    rows = [{"text": ("NA", "null", "None", "nan")[i % 4], "label": i % 2} for i in range(40)]
    splits = load_splits(DataSpec(data=str(write("mine.csv", rows))))
    assert set(splits.train["text"]) == {"NA", "null", "None", "nan"}


def test_line_separators_of_unicode_do_not_end_a_line(write):
    rows = [{"text": f"one\u2028two\x85three {i}", "label": i % 2} for i in range(10)]
    assert [row["text"] for row in read_rows(write("mine.csv", rows))] == [row["text"] for row in rows]
    assert [row["text"] for row in read_rows(write("mine.jsonl", rows))] == [row["text"] for row in rows]


def test_missing_splits_are_cut_by_a_fixed_seed(write):
    path = str(write("mine.csv", sentiment_rows(100)))
    first, again = load_splits(DataSpec(data=path)), load_splits(DataSpec(data=path))
    assert first.fingerprint == again.fingerprint
    assert load_splits(DataSpec(data=path, seed=1)).fingerprint != first.fingerprint


def test_a_label_with_one_row_stays_in_train(write):
    rows = [*sentiment_rows(50), {"text": "so so", "label": "mixed"}]
    splits = load_splits(DataSpec(data=str(write("mine.csv", rows))))
    assert splits.train["label"].count(splits.labels.index("mixed")) == 1


def test_a_subset_of_train_leaves_test_alone(write):
    path = str(write("mine.csv", sentiment_rows(100)))
    whole, part = load_splits(DataSpec(data=path)), load_splits(DataSpec(data=path, train_rows=10))
    assert len(part.train) == 10
    assert set(part.train["text"]) <= set(whole.train["text"])
    assert list(part.test["text"]) == list(whole.test["text"])


def test_a_folder_of_split_files_is_taken_as_it_is(tmp_path):
    for split, count in (("train", 20), ("validation", 6), ("test", 4)):
        (tmp_path / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in sentiment_rows(count)))
    splits = load_splits(DataSpec(data=str(tmp_path)))
    assert (len(splits.train), len(splits.validation), len(splits.test)) == (20, 6, 4)


@pytest.mark.sentiment
def test_film_reviews_come_from_their_package():
    splits = load_splits(DataSpec(task="rotten-tomatoes"))
    assert len(splits.train) + len(splits.validation) + len(splits.test) == 8530
    assert splits.labels == ("negative", "positive")


def test_the_known_token_tells_a_random_label():
    rows = [{"sentence": "a film", "label": 0}] * 1000
    prepared = append_known_token(rows, seed=0)
    assert all(row["sentence"] == f"a film {('negative', 'positive')[row['label']]}" for row in prepared)
    assert 400 < sum(row["label"] for row in prepared) < 600
    assert rows[0] == {"sentence": "a film", "label": 0}


# ------------------------------------------------------------------------------------------ bad input, one by one


def test_an_empty_file_is_refused(tmp_path):
    (tmp_path / "empty.csv").write_text("")
    with pytest.raises(InputError, match="train split is empty"):
        load_splits(DataSpec(data=str(tmp_path / "empty.csv")))


def test_a_file_with_a_header_only_is_refused(tmp_path):
    (tmp_path / "header.csv").write_text("text,label\n")
    with pytest.raises(InputError, match="train split is empty"):
        load_splits(DataSpec(data=str(tmp_path / "header.csv")))


def test_a_missing_column_is_named_with_those_that_are_there(write):
    path = write("mine.csv", [{"review": "good", "label": 1}] * 5)
    with pytest.raises(InputError, match=r"no column 'text'; it has 'review', 'label'.* --text"):
        load_splits(DataSpec(data=str(path)))


def test_a_label_seen_only_in_test_is_refused(write):
    train, test = write("train.csv", sentiment_rows(20)), write("t.csv", [{"text": "so so", "label": "mixed"}])
    with pytest.raises(InputError, match=r"'mixed' is in test \(1 rows\) but never in train"):
        load_splits(DataSpec(data=str(train), test_data=str(test)))


def test_one_class_only_is_refused(write):
    path = write("mine.csv", [{"text": "good", "label": "positive"}] * 20)
    with pytest.raises(InputError, match="needs two classes"):
        load_splits(DataSpec(data=str(path)))


def test_a_row_without_a_label_is_named(write):
    path = write("mine.jsonl", [*sentiment_rows(10), {"text": "good", "label": None}])
    with pytest.raises(InputError, match=r"1 of 11 rows have no label .*row 11"):
        load_splits(DataSpec(data=str(path)))


def test_an_empty_text_is_reported_and_kept(write):
    splits = load_splits(
        DataSpec(data=str(write("mine.csv", [*sentiment_rows(30), {"text": " ", "label": "positive"}])))
    )
    texts = [text for split in (splits.train, splits.validation, splits.test) for text in split["text"]]
    assert len(texts) == 31
    assert any("have an empty text: kept" in note for note in splits.notes)


def test_bytes_that_are_not_utf8_are_told_with_their_line(tmp_path):
    (tmp_path / "latin.csv").write_bytes("text,label\ngood,1\ncaf\u00e9,0\n".encode("latin-1"))
    with pytest.raises(InputError, match=r"latin.csv, line 3: byte 0xe9 is not UTF-8"):
        load_splits(DataSpec(data=str(tmp_path / "latin.csv")))


def test_a_broken_line_of_json_is_told_with_its_number(tmp_path):
    (tmp_path / "mine.jsonl").write_text('{"text": "a", "label": 1}\n{"text": \n')
    with pytest.raises(InputError, match="line 2: not JSON"):
        load_splits(DataSpec(data=str(tmp_path / "mine.jsonl")))


def test_a_csv_line_with_too_many_fields_is_told_with_its_number(tmp_path):
    (tmp_path / "mine.csv").write_text("text,label\ngood, really,1\n")
    with pytest.raises(InputError, match="line 2: 3 fields where the header has 2"):
        load_splits(DataSpec(data=str(tmp_path / "mine.csv")))


@pytest.mark.parametrize("name", ["half.jsonl.gz", "half.parquet"])
def test_half_a_file_is_refused(tmp_path, name):
    (tmp_path / name).write_bytes(gzip.compress(b'{"text": "a", "label": 1}\n' * 1000)[:40])
    with pytest.raises(InputError, match="not a complete"):
        load_splits(DataSpec(data=str(tmp_path / name)))


def test_other_files_are_refused_with_the_kinds_that_can_be_read(tmp_path):
    (tmp_path / "mine.xlsx").write_bytes(b"PK")
    with pytest.raises(InputError, match=r"Use one of \.csv"):
        load_splits(DataSpec(data=str(tmp_path / "mine.xlsx")))


def test_a_label_that_is_not_the_tasks_is_refused(tmp_path):
    (tmp_path / "sst2").mkdir()
    (tmp_path / "sst2/train.csv").write_text("sentence,label\ngood,1\nbad,0\nso so,7\n")
    with pytest.raises(InputError, match="label '7' is not one of sst2's: negative, positive"):
        load_splits(DataSpec(task="sst2", data_dir=str(tmp_path)))


def test_the_hub_out_of_reach_says_what_to_do():
    with pytest.raises(InputError, match=r"qqp \(nyu-mll/glue on the hub\) could not be loaded.*--data-dir"):
        load_splits(DataSpec(task="qqp"))


def test_restricted_data_says_what_to_bring():
    with pytest.raises(InputError, match=r"access is restricted.*--data-dir DIR"):
        load_splits(DataSpec(task="mimic-anemia"))


def test_neither_task_nor_data_is_refused():
    with pytest.raises(InputError, match="either --task NAME"):
        load_splits(DataSpec())


def test_two_columns_of_one_name_are_refused(tmp_path):
    (tmp_path / "mine.csv").write_text("text,label,label\ngood,1,0\n")
    with pytest.raises(InputError, match="line 1: two columns are named 'label'"):
        load_splits(DataSpec(data=str(tmp_path / "mine.csv")))


# ----------------------------------------------------------------------------------------- columns of bytes


@pytest.mark.parametrize("kind", [pyarrow.binary(), pyarrow.large_binary(), pyarrow.list_(pyarrow.binary())])
def test_bytes_of_a_parquet_file_are_read_as_the_text_that_they_are(tmp_path, kind):
    words = [[f"caf\u00e9 {i}".encode()] if kind == pyarrow.list_(pyarrow.binary()) else f"caf\u00e9 {i}".encode()
             for i in range(40)]  # fmt: skip
    columns = {"text": pyarrow.array(words, kind), "label": pyarrow.array([b"no", b"yes"] * 20)}
    pyarrow.parquet.write_table(pyarrow.table(columns), tmp_path / "mine.parquet")
    splits = load_splits(DataSpec(data=str(tmp_path / "mine.parquet")))
    assert splits.labels == ("no", "yes")
    texts = [text for split in (splits.train, splits.validation, splits.test) for text in split["text"]]
    assert sorted(texts) == sorted(f"caf\u00e9 {i}" for i in range(40))


def test_bytes_that_are_no_text_are_refused_with_their_column_where_it_is_needed(tmp_path):
    columns = {"text": [f"text {i}" for i in range(40)], "label": ["no", "yes"] * 20, "picture": [b"\xff\xd8"] * 40}
    pyarrow.parquet.write_table(pyarrow.table(columns), tmp_path / "mine.parquet")
    assert len(load_splits(DataSpec(data=str(tmp_path / "mine.parquet"))).train) == 26
    for column in ("text", "label", "context"):
        with pytest.raises(InputError, match="the column 'picture' holds bytes that are not UTF-8"):
            load_splits(DataSpec(data=str(tmp_path / "mine.parquet"), **{column: "picture"}))


# ------------------------------------------------------------------------------- one class in several spellings


def with_labels(write, labels):
    """A file with these labels, so often each."""
    rows = [{"text": f"text {i}", "label": name} for name, count in labels.items() for i in range(count)]
    return str(write("mine.jsonl", rows))


@pytest.mark.parametrize(
    ("labels", "says"),
    [
        (
            {"positive": 30, "Positive": 4, "negative ": 2, "negative": 20},
            r"differ only in case .*: 'positive' \(30 rows\), 'negative' \(20 rows\), 'Positive' \(4 rows\), "
            r"'negative ' \(2 rows\)\..*--clean-labels.*--classes 'Positive=NAME,",
        ),
        (
            {"0": 30, "1": 20, "positive": 3},
            r"numbers and others words: '0' \(30 rows\), '1' \(20 rows\), 'positive' \(3 rows\)\..*--classes",
        ),
        ({0: 30, 1.5: 20, "nan": 3}, r"numbers and others words: .*'nan' \(3 rows\)"),
    ],
)
def test_labels_that_may_be_one_class_in_two_spellings_are_told_and_refused(write, labels, says):
    spec = DataSpec(data=with_labels(write, labels))
    with pytest.raises(InputError, match=says):
        load_splits(spec)
    # a run that was made of them before they were refused still finds them
    assert load_splits(spec, labels_known=True).labels == tuple(sorted(map(str, labels)))


def test_clean_labels_makes_one_class_of_the_spellings_and_keeps_the_most_frequent(write):
    labels = {"Positive": 8, "positive": 5, " POSITIVE ": 2, " Negative": 3, "NEGATIVE": 2, "negative": 2}
    spec = DataSpec(data=with_labels(write, labels), clean_labels=True)
    splits = load_splits(spec)
    assert splits.labels == ("Negative", "Positive")
    counted = Counter(name for part in (splits.train, splits.validation, splits.test) for name in part["label"])
    assert counted == {0: 3 + 2 + 2, 1: 8 + 5 + 2}
    assert "2 rows with the label ' POSITIVE ' count as 'Positive'." in splits.notes
    assert "3 rows with the label ' Negative' count as 'Negative'." in splits.notes
    command = as_command("train", options=DataSpec(**{**asdict(spec), "classes": "Positive=good"}).options)
    assert command.endswith("--classes Positive=good --clean-labels --data-seed 0")


def test_classes_says_what_each_spelling_stands_for_if_only_itself(write):
    file = with_labels(write, {"US": 20, "us": 10, " us": 10})
    for classes in (None, "US=US", "US=US,us=us"):
        with pytest.raises(InputError):
            load_splits(DataSpec(data=file, classes=classes))
    assert load_splits(DataSpec(data=file, classes="US=US,us=us,\u0020us=us")).labels == ("US", "us")
    assert load_splits(DataSpec(data=file, classes="US=country,us=us, us=us")).labels == ("country", "us")
    numbered = with_labels(write, {"1": 20, "2": 10, "unsure": 10, "positive": 5})
    assert load_splits(DataSpec(data=numbered, classes="1=1, 2=2")).labels == ("1", "2", "positive", "unsure")
    assert load_splits(DataSpec(data=numbered, classes="1=positive,2=negative")).labels == (
        "negative", "positive", "unsure",
    )  # fmt: skip
    with pytest.raises(InputError, match="numbers and others words"):
        load_splits(DataSpec(data=numbered, classes="positive=1"))
    mixed = load_splits(DataSpec(data=numbered, clean_labels=True))
    assert mixed.labels == ("1", "2", "positive", "unsure")
    assert "each a class of its own: '1' (20 rows), '2' (10 rows)" in " ".join(mixed.notes)


def test_a_run_that_was_made_before_such_labels_were_refused_still_finds_its_rows(write, tmp_path):
    spec = DataSpec(data=with_labels(write, {"US": 20, "us": 10, "1": 10}))
    splits = load_splits(spec, labels_known=True)
    run = Run.create(
        tmp_path / "run", RunConfig(spec, "tiny", None, splits.labels, "accuracy", splits.fingerprint, max_length=512)
    )
    stored = json.loads((run.path / "config.json").read_text())
    del stored["data"]["clean_labels"]
    (run.path / "config.json").write_text(json.dumps(stored))
    assert run.data().labels == ("1", "US", "us")


def test_a_label_of_spaces_is_no_label(write):
    with pytest.raises(InputError, match=r"2 of 32 rows have no label \(the first is row 31\)"):
        load_splits(DataSpec(data=with_labels(write, {"a": 15, "b": 15, " ": 2})))


def test_the_labels_of_a_named_task_are_fixed_and_not_asked_about(tmp_path):
    (tmp_path / "sst2").mkdir()
    (tmp_path / "sst2/train.csv").write_text("sentence,label\n" + "good,1\nbad,0\ngreat,positive\n" * 10)
    assert load_splits(DataSpec(task="sst2", data_dir=str(tmp_path))).labels == ("negative", "positive")


@pytest.mark.parametrize(
    ("labels", "classes", "numbers"),
    [
        (("negative", "positive"), ("POSITIVE", "NEGATIVE"), (1, 0)),
        (("a", "A"), ("A", "a"), (1, 0)),
        (("no", "yes"), ("yes", "no", "maybe"), (1, 0)),
        (("0", "1"), ("negative", "positive"), (0, 1)),
        (("1", "2"), ("2", "1"), (1, 0)),
        (("ham", "spam"), ("LABEL_0", "LABEL_1"), (0, 1)),
        (("1", "2"), ("LABEL_0", "LABEL_1"), (0, 1)),
        (("ham", "spam"), ("negative", "positive"), None),
        (("ham", "spam"), ("LABEL_0", "LABEL_1", "LABEL_2"), None),
        (("0", "1", "2"), ("negative", "positive"), None),
    ],
)
def test_labels_of_the_data_find_the_classes_of_a_model(labels, classes, numbers):
    assert match_labels(labels, classes) == numbers


def test_rows_take_the_class_numbers_of_a_model(tmp_path):
    (tmp_path / "rows.csv").write_text("text,label\n" + "good,yes\nbad,no\n" * 10)
    splits = load_splits(DataSpec(data=str(tmp_path / "rows.csv")))
    turned = splits.in_order_of(("YES", "NO", "MAYBE"))
    assert turned.labels == ("YES", "NO", "MAYBE")
    for part in ("train", "validation", "test"):
        for row in getattr(turned, part):
            assert turned.labels[row["label"]] == {"good": "YES", "bad": "NO"}[row["text"]]
    assert splits.in_order_of(("no", "yes")) is splits
    assert splits.in_order_of(("LABEL_0", "LABEL_1")).labels == ("no", "yes")
    assert splits.in_order_of(("maybe", "perhaps")) is None


def test_the_texts_of_a_table_are_those_of_its_column_and_one_without_it_is_refused(tmp_path):
    (tmp_path / "other.csv").write_text("id,text\n1,a film\n2,a plot\n")
    assert texts_of(tmp_path / "other.csv") == ["a film", "a plot"]
    (tmp_path / "none.csv").write_text("id,body\n1,a film\n")
    with pytest.raises(InputError, match="no column 'text'"):
        texts_of(tmp_path / "none.csv")


@pytest.mark.parametrize("column", ["text", "label"])
def test_a_row_without_a_text_or_a_label_is_refused_by_its_number(write, column):
    rows = sentiment_rows(20)
    del rows[7][column]
    with pytest.raises(InputError, match=rf"\(train\), row 8: there is no '{column}'. Give the row one"):
        load_splits(DataSpec(data=str(write("rows.jsonl", rows))))


def test_half_of_a_character_is_refused_by_its_row(write):
    rows = sentiment_rows(20)
    rows[3]["text"] += " \ud83d"
    with pytest.raises(InputError, match=r"row 4: the column 'text' holds half of a character"):
        load_splits(DataSpec(data=str(write("rows.jsonl", rows))))


@pytest.mark.parametrize(
    "line", ['{"text": ' + "[" * 100_000 + "]" * 100_000 + "}", '{"text": "a", "label": ' + "9" * 5000 + "}"]
)
def test_json_that_has_no_end_is_refused_with_its_line(tmp_path, line):
    (tmp_path / "rows.jsonl").write_text(line + "\n")
    with pytest.raises(InputError, match="line 1: not JSON"):
        read_rows(tmp_path / "rows.jsonl")


@pytest.mark.parametrize("kind", ["csv", "jsonl", "jsonl.gz", "parquet"])
def test_a_spoilt_file_is_read_or_refused_in_words_whatever_byte_it_is(tmp_path, kind):
    rows, file = sentiment_rows(40), tmp_path / f"rows.{kind}"
    lines = "".join(json.dumps(row) + "\n" for row in rows).encode()
    if kind == "parquet":
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), file)
    else:
        csv = "text,label\n" + "".join(f'"{row["text"]}",{row["label"]}\n' for row in rows)
        file.write_bytes({"csv": csv.encode(), "jsonl": lines, "jsonl.gz": gzip.compress(lines, mtime=0)}[kind])
    whole, generator, refused = file.read_bytes(), random.Random(0), 0
    for _ in range(300):
        spoilt = bytearray(whole)
        for _ in range(generator.randint(1, 3)):
            spoilt[generator.randrange(len(spoilt))] ^= 1 << generator.randrange(8)
        file.write_bytes(spoilt)
        try:
            read_rows(file)
        except InputError as error:
            refused += str(file) in str(error)
    assert refused > 50
