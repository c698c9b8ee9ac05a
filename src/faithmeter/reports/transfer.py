"""The section of a report on a model that is judged on the texts of another domain than its own."""

from faithmeter.in_distribution.masf import LEVEL
from faithmeter.reports.formats import Table
from faithmeter.reports.parts import Section
from faithmeter.reports.sentences import checked_on_few
from faithmeter.runs.results import TRANSFER, TRANSFER_MAJORITY, Rows, find, number, rows_of

AT_HOME, ELSEWHERE = "in domain", "out of domain"


def transfer_sections(rows: Rows, prefix: str = "") -> list[Section]:
    """Return the section on the other domain; none where the run is at home."""
    found = rows_of(rows, TRANSFER)
    if not found:
        return []
    cells = [
        [row["detail"], number(row, 3), number(find(rows, TRANSFER_MAJORITY, detail=row["detail"]), 3), str(row["n"])]
        for row in found
    ]
    over = "trainings" if found[0]["over"] == "seeds" else "texts"
    table = Table(
        f"{prefix}transfer", f"The same model at home and elsewhere; 95 % intervals over {over}",
        ("data", found[0]["metric"], "class majority", over), cells,
    )  # fmt: skip
    said = [
        "The model has learnt from other data than it is judged on here. The in-distribution test is the one of its "
        "home: it asks whether these texts, masked or not, are what the model knows.",
        "It shows whether explanations hold where the model was not trained. It cannot tell a worse measure from a "
        "model that is lost: where performance is low, or texts are out-of-distribution, there is less to explain.",
    ]
    unmasked = find(rows, "check_p_value", ratio=0.0)["value"]
    if unmasked is None:
        return [Section("Out of domain", said, [table], cautions=[
            "Whether these texts are in-distribution was not checked: `faithmeter check` does it."
        ])]  # fmt: skip
    share, few = find(rows, "check_share_out_of_distribution", ratio=0.0)["value"], checked_on_few(rows)
    if unmasked <= LEVEL:
        strange = f"{100 * share:.1f} % of them, where chance gives 5 %"
        said.append(f"Unmasked already they are out-of-distribution for it: {strange}.")
    elif few is None:
        said.append("Unmasked they are in-distribution for it: the other domain is not strange to the model.")
    else:
        said.append(f"Unmasked they were not found to be out-of-distribution. {few}")
    return [Section("Out of domain", said, [table])]
