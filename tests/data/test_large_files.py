"""Large files: they are in memory once, their reading is reported, and their splits are those that they always were."""

import csv
import gzip
import hashlib
import json
import tracemalloc

import pyarrow.parquet
import pytest

from faithmeter.data import splits as splits_module
from faithmeter.data import tables
from faithmeter.data.splits import DataSpec, load_splits
from faithmeter.data.tables import read_rows

WORDS = ("good", "bad", "film", "story", "actor", "plot", "great", "awful", "very", "not", "the", "a", "it", "was")


def odd_rows(count: int) -> list[dict]:
    """Rows with empty texts, quotes, line breaks, two spellings of a label, missing authors and lists."""
    rows = []
    for i in range(count):
        words = [WORDS[(i * i * k + 3 * i + k) % len(WORDS)] for k in range(1, 2 + i % 7)]
        rows.append(
            {
                "text": " ".join(words) if i % 19 else "",
                "other": f'é, "{i % 5}"\nnext',
                "label": ("pos", "neg", "Pos")[i % 2 if i % 11 else 2],
                "author": f"a{i % 9}" if i % 8 else "",
                "marks": [i % 2, i % 3],
            }
        )
    return rows


def as_csv(rows: list[dict], names: list[str]) -> str:
    quoted = (",".join('"' + str(row[name]).replace('"', '""') + '"' for name in names) for row in rows)
    return "\n".join([",".join(names), *quoted]) + "\n"


@pytest.fixture
def folder(tmp_path):
    rows = odd_rows(120)
    (tmp_path / "a.csv").write_text(as_csv(rows, ["author", "text", "other", "label"]), encoding="utf-8-sig")
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    with gzip.open(tmp_path / "a.csv.gz", "wt", encoding="utf-8", newline="") as file:
        file.write(as_csv(rows[::-1], ["text", "label", "other"]))
    texts, labels = [row["text"].encode() for row in rows], [float(i % 3) for i in range(len(rows))]
    pyarrow.parquet.write_table(pyarrow.table({"text": texts, "label": labels}), tmp_path / "a.parquet")
    (tmp_path / "d").mkdir()
    for part, some in (("train", rows[:60]), ("validation", rows[60:80]), ("test", rows[80:])):
        lines = "".join(f"{row['text']}\t{row['label']}\n" for row in some)
        (tmp_path / "d" / f"{part}.tsv").write_text(f"text\tlabel\n{lines}")
    return tmp_path


# what version 0.2 of 18 November 2026 made of these files, before large ones were read row by row: the fingerprint of
# the texts and labels, and hashes of all columns and of the notes
BEFORE = {
    "csv": ("d69c2a93924ac82b", "d37b85a259ab28ae", "b78594356df92974"),
    "file order": ("6133f297319f0797", "862853529d9ecff4", "cd6229d39b2ca31a"),
    "pairs of authors": ("32d03b0ed882a870", "eed2537f2e55a8f9", "08a4f0081d155740"),
    "kept columns": ("884bebfe1dcdebd5", "e80f7d922e8f307d", "481d5d815c4bafe4"),
    "gzip": ("6c1b43ff53822793", "6e225f20e59175bf", "feff16d1606cc22f"),
    "parquet": ("ddaa88b193b5f177", "95ca919885838013", "dc724017e39b0c30"),
    "folder": ("441433f231884d38", "0567a9abc61e2ed7", "7d12b92c71e4ca60"),
    "generated": ("128bcd16adb06ca0", "27bd90c74d5b9a80", "c290735211132013"),
}
SPECS = {
    "csv": {"data": "a.csv", "clean_labels": True},
    "file order": {"data": "a.csv", "clean_labels": True, "row_order": "file"},
    "pairs of authors": {"data": "a.jsonl", "clean_labels": True, "context": "other", "group": "author"},
    "kept columns": {"data": "a.jsonl", "clean_labels": True, "seed": 3},
    "gzip": {"data": "a.csv.gz", "classes": "Pos=pos", "train_rows": 30, "test_rows": 9},
    "parquet": {"data": "a.parquet", "validation_rows": 7},
    "folder": {"data": "d", "clean_labels": True},
    "generated": {"task": "babi-1", "train_rows": 50, "test_rows": 20},
}


def short_hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


@pytest.mark.parametrize("name", SPECS)
@pytest.mark.parametrize("at_once", [10_000, 7])
def test_splits_columns_and_notes_are_those_of_before(folder, monkeypatch, name, at_once):
    monkeypatch.setattr(splits_module, "AT_ONCE", at_once)
    spec = dict(SPECS[name])
    if "data" in spec:
        spec["data"] = str(folder / spec["data"])
    found = load_splits(DataSpec(**spec), keep=("marks", "author") if name == "kept columns" else ())
    columns = json.dumps([[part.to_dict()] for part in (found.train, found.validation, found.test)])
    notes = "\n".join(found.notes).replace(str(folder), "")
    assert (found.fingerprint, short_hash(columns), short_hash(notes)) == BEFORE[name]


def test_a_file_is_held_in_memory_little_more_than_once(tmp_path):
    path, row = tmp_path / "large.csv", " ".join(f"word{number}" for number in range(60))
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["unused", "text", "label"])
        writer.writerows([row[:200], f"{row} {number}", number % 2] for number in range(4000))
    load_splits(DataSpec(data=str(path)))  # so that what is imported for it is not counted
    tracemalloc.start()
    try:
        load_splits(DataSpec(data=str(path)))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    texts = sum(len(f"{row} {number}") for number in range(4000))
    assert peak < 2.2 * texts  # the texts, a dictionary for each, and where each comes in the order


@pytest.mark.parametrize("name", ["a.csv", "a.csv.gz", "a.jsonl", "a.parquet"])
def test_only_columns_that_are_needed_are_kept_and_the_first_row_names_all(folder, name):
    whole = read_rows(folder / name)
    few = read_rows(folder / name, ["text", "author"])
    assert few[0].keys() == whole[0].keys()
    wanted = {"text", "author"} & whole[0].keys()
    assert few[1:] == [{key: row[key] for key in row if key in wanted} for row in whole[1:]]


@pytest.mark.parametrize("name", ["a.csv", "a.csv.gz", "a.jsonl"])
def test_reading_reports_how_many_bytes_are_read(folder, monkeypatch, name):
    monkeypatch.setattr(tables, "ROWS_BETWEEN_REPORTS", 10)
    reported = []
    read_rows(folder / name, progress=reported.append)
    assert len(reported) == 12
    assert 0 < sum(reported) <= (folder / name).stat().st_size
