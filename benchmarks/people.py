"""Are people's word labels a faithful explanation of a model? Writes them as scores from elsewhere, for `measure`.

    python benchmarks/people.py runs/study/sst2-masked-0 --data-dir DIR --out people.csv
    faithmeter measure runs/study/sst2-masked-0 --rows 200 --measures loo-signed,grad-l2 --scores people.csv

`masked_performance.py` trains that run.

In the Stanford Sentiment Treebank (Socher et al., 2013) people graded every word from 0, very negative, to 4, very
positive, without knowing the sentence. A word's score for the positive class is its grade less 2, and for the negative
class the opposite.
"""

import argparse
import csv
import gzip
import json
import re
from pathlib import Path

from faithmeter import Run

NEUTRAL = 2
LEAF = re.compile(r"\((\d) ([^()\s]+)\)")


def grades(folder: Path) -> dict[str, int]:
    """Return the grade of every word in the trees, less that of a neutral one."""
    found = {}
    for file in sorted(folder.glob("*.jsonl.gz")):
        with gzip.open(file, "rt", encoding="utf-8") as lines:
            for line in lines:
                found |= {word.lower(): int(grade) - NEUTRAL for grade, word in LEAF.findall(json.loads(line)["tree"])}
    return found


def spans(text: str, sign: int, known: dict[str, int]) -> list[tuple[int, int, int]]:
    """Return start, end and score of the words that are not neutral."""
    words = [(match.start(), match.end(), sign * known.get(match[0].lower(), 0)) for match in re.finditer(r"\S+", text)]
    return [word for word in words if word[2]]


def main() -> None:
    """Write the scores of a run's test texts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("--data-dir", type=Path, required=True, help="folder with sst_trees")
    parser.add_argument("--out", type=Path, default=Path("people.csv"))
    asked = parser.parse_args()
    known, marked = grades(asked.data_dir / "sst_trees"), 0
    test = Run(asked.run).data().test
    with asked.out.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(("row", "start", "end", "score"))
        for row, said in enumerate(test):
            found = spans(said["text"], 1 if said["label"] else -1, known)
            marked += bool(found)
            writer.writerows((row, *span) for span in found or [("", "", "")])
    print(f"{asked.out}: {len(test)} texts, of which people graded a word of {marked} as not neutral.")


if __name__ == "__main__":
    main()
