"""Tasks: the named tasks, and where their data comes from."""

import json
from typing import Annotated, Any

from typer import Option

from faithmeter.cli.printing import print_tasks


def tasks(
    as_json: Annotated[bool, Option("--json", help="One JSON object per line, for machines.")] = False,
) -> None:
    """List the named tasks.

    What is masked, the metric, and where the data comes from.
    """
    from faithmeter.data.tasks import TASKS

    rows: list[dict[str, Any]] = [
        {
            "name": task.name,
            "text / context": task.text if task.context is None else f"{task.text} / {task.context}",
            "metric": task.metric,
            "epochs": task.epochs,
            "data": task.sources,
            "about": "; ".join(part for part in (task.papers, task.note) if part),
        }
        for task in TASKS.values()
    ]
    if as_json:
        for row in rows:
            print(json.dumps(row, ensure_ascii=False))
        return
    print_tasks(rows)
