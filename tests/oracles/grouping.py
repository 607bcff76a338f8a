"""Plain lists and loops over the answers of each prompt; what every oracle starts from."""

import math


def rows_by_label(labels):
    """{label: [row, ...]} with an honest loop: two labels are one group when == says so."""
    found = []
    for row, label in enumerate(labels):
        for known, rows in found:
            if known == label:
                rows.append(row)
                break
        else:
            found.append((label, [row]))
    return [rows for _, rows in found]


def mean(values):
    return math.fsum(values) / len(values)


def std(values, ddof):
    centre = mean(values)
    return math.sqrt(math.fsum((v - centre) ** 2 for v in values) / (len(values) - ddof))


def per_group(scores, labels, judge):
    """`judge(values of one group) -> advantages of that group`, back in the order of the batch."""
    advantages = [None] * len(scores)
    for rows in rows_by_label(labels):
        judged = judge([scores[row] for row in rows])
        for row, advantage in zip(rows, judged, strict=True):
            advantages[row] = advantage
    return advantages
