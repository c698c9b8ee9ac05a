"""The section of a report on a model that is judged on texts of another domain."""

from faithmeter.reports.evidence import checked_on_few
from faithmeter.reports.parts import Section, Table
from faithmeter.runs.results import TRANSFER, TRANSFER_MAJORITY, Rows, find, number, rows_of
from faithmeter.statistics import LEVEL

AT_HOME, ELSEWHERE = "in domain", "out of domain"


def transfer_sections(rows: Rows, prefix: str = "") -> list[Section]:
    """Return the section on the other domain; empty for a run on its own domain."""
    found = rows_of(rows, TRANSFER)
    if not found:
        return []
    cells = [
        [row["detail"], number(row, 3), number(find(rows, TRANSFER_MAJORITY, detail=row["detail"]), 3), str(row["n"])]
        for row in found
    ]
    over = "trainings" if found[0]["over"] == "seeds" else "texts"
    table = Table(
        f"{prefix}transfer", f"The same model in and out of domain; 95 % intervals over {over}",
        ("data", found[0]["metric"], "class majority", over), cells,
    )  # fmt: skip
    said = [
        "The model was trained on other data than it is judged on here. The in-distribution test is fitted on its own "
        "domain: it tests whether these texts, masked or not, are like those the model was trained on.",
        "It shows whether explanations are faithful outside the training domain. It cannot separate a worse measure "
        "from a worse model: where performance is low, or texts are out-of-distribution, there is less to explain.",
    ]
    unmasked = find(rows, "check_p_value", ratio=0.0)["value"]
    if unmasked is None:
        return [Section("Out of domain", said, [table], cautions=[
            "Whether these texts are in-distribution was not checked: run `faithmeter check`."
        ])]  # fmt: skip
    share, few = find(rows, "check_share_out_of_distribution", ratio=0.0)["value"], checked_on_few(rows)
    if unmasked <= LEVEL:
        strange = f"{100 * share:.1f} % of them, where chance gives 5 %"
        said.append(f"Even unmasked they are out-of-distribution for it: {strange}.")
    elif few is None:
        said.append("Unmasked they are in-distribution for it.")
    else:
        said.append(f"Unmasked they were not found to be out-of-distribution. {few}")
    return [Section("Out of domain", said, [table])]
