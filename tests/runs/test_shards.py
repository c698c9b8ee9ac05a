"""Work that is cut into files goes on where it was, and ends in the same files however often it stops."""

import pyarrow
import pytest

from faithmeter.errors import InputError
from faithmeter.runs.shards import Shards, as_parquet, read_shards

PIECES = [[1, 2], [3], [4, 5, 6]]


def table(_, piece):
    return as_parquet(pyarrow.table({"value": piece}))


def fill(shards, make=table, **options):
    told, steps = [], []
    shards.fill(PIECES, make, advance=steps.append, warn=told.append, **options)
    return told, steps


def test_what_is_done_is_passed_over_and_counted(tmp_path):
    shards, made = Shards(tmp_path / "walk"), []

    def stops_at_the_second(number, piece):
        if number == 1:
            raise KeyboardInterrupt
        made.append(number)
        return table(number, piece)

    with pytest.raises(KeyboardInterrupt):
        fill(shards, stops_at_the_second)
    assert shards.done(3, print) == [True, False, False]
    told, steps = fill(shards, lambda number, piece: made.append(number) or table(number, piece))
    assert (made, told, steps) == ([0, 1, 2], [], [2, 1, 3])
    assert read_shards(shards.folder, "")["value"].to_pylist() == [1, 2, 3, 4, 5, 6]


def test_workers_that_share_the_work_make_each_file_once(tmp_path):
    shards, made = Shards(tmp_path / "walk"), []
    for worker in (0, 1):
        fill(shards, lambda number, piece: made.append(number) or table(number, piece), share=(worker, 2))
    assert made == [0, 2, 1]


def test_a_damaged_file_is_told_of_set_aside_and_made_again(tmp_path):
    shards = Shards(tmp_path / "walk")
    fill(shards)
    shards.file(1).write_bytes(b"spoilt")
    with pytest.raises(InputError, match=r"00001.parquet is damaged.*do it again"):
        read_shards(shards.folder, "do it again")
    told, _ = fill(shards)
    assert len(told) == 1
    assert "00001.parquet is damaged" in told[0]
    assert read_shards(shards.folder, "")["value"].to_pylist() == [1, 2, 3, 4, 5, 6]
    assert shards.file(1).with_name("00001.parquet.damaged-1").read_bytes() == b"spoilt"


def test_a_folder_without_files_has_no_table(tmp_path):
    assert read_shards(tmp_path, "") is None


def test_files_of_two_splits_stand_in_one_folder(tmp_path):
    train, test = (Shards(tmp_path, ".safetensors", f"{part}-") for part in ("train", "test"))
    assert (train.file(0).name, test.file(12).name) == ("train-00000.safetensors", "test-00012.safetensors")
