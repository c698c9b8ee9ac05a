"""Work that needs other work: in one process or several, whatever happens to them."""

import functools
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from faithmeter.errors import InputError
from faithmeter.progress import Silent
from faithmeter.runs import engines
from faithmeter.runs.engines import cores, work_through

NEEDS = {2: 1, 3: 2, 5: 4}


def write_after_its_need(folder, piece):
    need = NEEDS.get(piece)
    assert need is None or (Path(folder) / str(need)).exists()
    (Path(folder) / str(piece)).write_text(str(piece))


def be_killed_the_first_time(folder, piece):
    tried = Path(folder) / f"tried-{piece}"
    if piece == 2 and not tried.exists():
        tried.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    write_after_its_need(folder, piece)


def be_killed(_folder, piece):
    if piece == 2:
        os.kill(os.getpid(), signal.SIGKILL)


def refuse(_folder, piece):
    if piece == 4:
        raise InputError("four cannot be done")


class Listener(Silent):
    def __init__(self):
        self.warnings = []

    def warn(self, text):
        self.warnings.append(text)


def go(work, folder, workers, reporter=None):
    done = []
    work_through(
        [1, 2, 3, 4, 5],
        NEEDS.get,
        functools.partial(work, str(folder)),
        workers=workers,
        finished=done.append,
        reporter=reporter or Silent(),
    )
    return done


@pytest.mark.parametrize("workers", [1, 3])
def test_every_piece_is_done_once_after_what_it_needs(tmp_path, workers):
    done = go(write_after_its_need, tmp_path, workers)
    assert sorted(done) == [1, 2, 3, 4, 5]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["1", "2", "3", "4", "5"]


def test_a_killed_process_costs_the_piece_it_was_at_which_is_begun_again(tmp_path):
    listener = Listener()
    assert sorted(go(be_killed_the_first_time, tmp_path, 2, listener)) == [1, 2, 3, 4, 5]
    assert len(listener.warnings) == 1


def test_work_that_kills_its_process_every_time_is_given_up_in_words(tmp_path):
    with pytest.raises(InputError, match="fewer --workers"):
        go(be_killed, tmp_path, 2)


@pytest.mark.parametrize("workers", [1, 2])
def test_what_a_piece_refuses_is_said_to_the_caller(tmp_path, workers):
    with pytest.raises(InputError, match="four cannot be done"):
        go(refuse, tmp_path, workers)


def linger(folder, piece):
    (Path(folder) / f"at-{piece}").write_text(str(os.getpid()))
    time.sleep(600)


def test_workers_leave_when_the_process_that_started_them_is_killed(tmp_path):
    code = (
        "import functools, sys; sys.path.insert(0, sys.argv[2]); import test_engines as t\n"
        "from faithmeter.runs.engines import work_through\n"
        "if __name__ == '__main__':\n"
        "    work_through([1, 4], t.NEEDS.get, functools.partial(t.linger, sys.argv[1]), workers=2,\n"
        "                 finished=print, reporter=t.Silent())\n"
    )
    script = tmp_path / "script.py"
    script.write_text(code)
    main = subprocess.Popen([sys.executable, str(script), str(tmp_path), str(Path(__file__).parent)])
    begun = [tmp_path / "at-1", tmp_path / "at-4"]
    while not all(path.exists() and path.read_text() for path in begun):
        assert main.poll() is None
        time.sleep(0.05)
    main.kill()
    main.wait()
    waited = time.monotonic()
    while any(is_there(int(path.read_text())) for path in begun):
        assert time.monotonic() - waited < 60
        time.sleep(0.1)


def is_there(process):
    status = Path(f"/proc/{process}/stat")
    return status.exists() and status.read_text().rsplit(")", 1)[1].split()[0] != "Z"


def test_only_the_cores_that_this_process_may_use_count(monkeypatch):
    monkeypatch.setattr(os, "cpu_count", lambda: 64)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {3, 5}, raising=False)
    assert cores() == 2
    monkeypatch.delattr(os, "sched_getaffinity")  # as on systems that do not have it
    assert cores() == 64


def test_processes_take_several_gpus_in_turn_and_stay_where_they_are_told_to(monkeypatch):
    monkeypatch.delenv("FAITHMETER_DEVICE", raising=False)
    for there, expected in ((0, [None] * 3), (1, [None] * 3), (2, ["cuda:0", "cuda:1", "cuda:0"])):
        monkeypatch.setattr(torch.cuda, "device_count", lambda there=there: there)
        assert [engines.gpu_of(place) for place in range(3)] == expected
    monkeypatch.setenv("FAITHMETER_DEVICE", "cuda:1")
    assert (engines.gpus(), engines.gpu_of(0)) == (1, None)


def note_device(folder, piece):
    (folder / str(piece)).write_text(os.environ.get("FAITHMETER_DEVICE", "none"))
    while len(list(folder.iterdir())) < 2:  # so that both processes have one
        time.sleep(0.1)


def test_each_process_computes_on_the_gpu_of_its_place(monkeypatch, tmp_path):
    monkeypatch.setattr(engines, "gpu_of", lambda place: f"cuda:{place}")
    work = functools.partial(note_device, tmp_path)
    engines.work_through([0, 1], lambda _: None, work, workers=2, finished=lambda _: None, reporter=Silent())
    assert sorted(file.read_text() for file in tmp_path.iterdir()) == ["cuda:0", "cuda:1"]
    assert "FAITHMETER_DEVICE" not in os.environ
