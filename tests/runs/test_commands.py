"""Commands are made of settings by one rule."""

from pathlib import Path

from faithmeter.runs.commands import as_command


def test_an_option_is_said_as_the_command_line_reads_it():
    options = {
        "data": Path("my reviews.csv"),
        "measures": ["grad-l2", "ig-signed"],
        "seeds": (0, 1),
        "without_check": True,
        "clean_labels": False,
        "rows": None,
        "robust": (),
        "data_seed": 0,
    }
    assert as_command("measure", "runs/a", options=options) == (
        "faithmeter measure runs/a --data 'my reviews.csv' --measures grad-l2,ig-signed --seeds 0,1 --without-check "
        "--data-seed 0"
    )
