"""The table of importance measures, the most faithful first."""

from faithmeter.reports import sentences
from faithmeter.reports.parts import Table
from faithmeter.runs.results import EXPLAINED_ONCE, Rows, find, letters, measures, number, p_in_words, rejected, rows_of


def ranked_table(rows: Rows, prefix: str = "") -> Table:
    """Return the table of measures, the most faithful first, with all numbers to compare them by."""
    cells, judged = [], sentences.recommended(rows) is not None
    lettered = judged and bool(rows_of(rows, "best_set"))
    order, once = measures(rows), bool(rows_of(rows, EXPLAINED_ONCE))
    for name in order if judged else sorted(order, key=lambda name: -find(rows, "acu", name)["value"]):
        shares = [row["value"] for row in rows_of(rows, "share_out_of_distribution", name)]
        acu, p_value = find(rows, "acu", name), find(rows, "walk_p_value", name)["value"]
        cells.append(
            [
                name,
                *([_explained(rows, name)] if once else []),
                *([letters(rows, name)] if lettered else []),
                number(acu, 3),
                number(find(rows, "racu", name)),
                *([number(find(rows, "acu_behind_best", name), 3)] if judged else []),
                f"{find(rows, 'seconds_per_text', name)['value']:.3f}",
                f"{100 * max(shares):.1f} %" if shares else "not checked",
                "not checked" if p_value is None else _in_distribution(rows, name, p_value),
                str(acu["n"]),
            ]
        )
    each = "trainings" if any(row["over"] == "seeds" for row in rows) else "texts"
    price = "seconds per text, whole curve"
    behind = ("behind the best",) if judged else ()
    alike = ("alike",) if lettered else ()
    columns = (
        "measure",
        *(("explained",) if once else ()),
        *alike,
        "ACU",
        "RACU",
        *behind,
        price,
        "most texts out-of-distribution",
        "its masked texts",
        each,
    )
    said = (
        "the one to use, then by ACU, rejected ones last"
        if judged
        else "by ACU; none of them was shown to be faithful here"
    )
    said += "; measures that share a letter cannot be told apart" if lettered else ""
    return Table(f"{prefix}faithfulness", f"Importance measures: {said}", columns, cells)


def _in_distribution(rows: Rows, name: str, p_value: float) -> str:
    """Return what the test of a measure's masked texts says, and its p-value."""
    return f"{'rejected' if rejected(rows, name) else 'not rejected'} (p {p_in_words(p_value)})"


def _explained(rows: Rows, name: str) -> str:
    """Return when a measure explains, in words, and the file that its explanations are from."""
    row = next(iter(rows_of(rows, EXPLAINED_ONCE, name)), None)
    if row is None or not row["value"]:
        return "at each step"
    return f"once, in {row['detail']}" if row.get("detail") else "once"
