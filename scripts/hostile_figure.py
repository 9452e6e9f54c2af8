"""Hostile clients under every aggregation rule: docs/images/hostile.svg and hostile.csv, from results/index.csv.

`figures.py` writes both. A cell is the mean test accuracy over the seeds whose run finished; a
cross marks a cell in which no run did.
"""

import csv
import io
import statistics

import records

RULES = ["clipped-mean", "mean", "trimmed-mean", "median", "multi-krum", "fltrust"]
ATTACKS = [("sign", f) for f in "1358"] + [("scale", f) for f in "358"] + [("noise", f) for f in "1358"] + [("inside", "")]
HOSTILE = ["1", "3", "5", "7"]
SEEDS = range(3)
CELL, ROW, LEFT, TOP, GAP = 37, 22, 92, 112, 16


def cell(rule, hostile, attack, factor):
    """The mean accuracy of the runs that finished, if any, and the number of those that were stopped."""
    name = "-".join(filter(None, [rule, hostile, attack, factor]))
    rows = [records.index()[f"hostile/{name}/seed{seed}"] for seed in SEEDS]
    finished = [float(row["final"]) for row in rows if row["stopped"] == "0"]
    return (statistics.fmean(finished) if finished else None), len(rows) - len(finished)


def table():
    """The figure as CSV."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["hostile_of_ten", "attack", "factor", "rule", "accuracy", "stopped_of_three"])
    for hostile in HOSTILE:
        for attack, factor in ATTACKS:
            for rule in RULES:
                mean, stopped = cell(rule, hostile, attack, factor)
                writer.writerow([hostile, attack, factor, rule, "" if mean is None else f"{mean:.2f}", stopped])
    return text.getvalue()


def colour(mean):
    """From red at 10 % to white at 85 % (the start is at 84.7 %) and blue at 95 %."""
    if mean is None:
        return "#b2182b"
    low, high, share = (178, 24, 43), (255, 255, 255), min(max((mean - 10) / 75, 0), 1)
    if mean > 85:
        low, high, share = (255, 255, 255), (103, 169, 207), min((mean - 85) / 10, 1)
    return "#" + "".join(f"{round(a + (b - a) * share):02x}" for a, b in zip(low, high))


def figure():
    """The figure as SVG: one panel per number of hostile clients."""
    panel = CELL * len(RULES)
    width, height = LEFT + len(HOSTILE) * (panel + GAP), TOP + ROW * len(ATTACKS) + 12
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="12">',
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
    ]
    for row, (attack, factor) in enumerate(ATTACKS):
        label = f"{attack} × {factor}" if factor else attack
        parts.append(f'<text x="{LEFT - 8}" y="{TOP + ROW * row + 15}" text-anchor="end">{label}</text>')
    for number, hostile in enumerate(HOSTILE):
        x = LEFT + number * (panel + GAP)
        parts.append(f'<text x="{x}" y="20" font-weight="bold">{hostile} of 10 hostile</text>')
        for column, rule in enumerate(RULES):
            at = f"{x + CELL * column + 22} {TOP - 8}"
            parts.append(f'<text transform="translate({at}) rotate(-60)">{rule}</text>')
            for row, (attack, factor) in enumerate(ATTACKS):
                mean, stopped = cell(rule, hostile, attack, factor)
                left, top = x + CELL * column, TOP + ROW * row
                text = "×" if mean is None else f"{mean:.0f}" + "*" * bool(stopped)
                ink = "#ffffff" if mean is None or mean < 45 else "#111111"
                parts.append(f'<rect x="{left}" y="{top}" width="{CELL - 1}" height="{ROW - 1}" fill="{colour(mean)}"/>')
                parts.append(f'<text x="{left + CELL / 2}" y="{top + 15}" text-anchor="middle" fill="{ink}">{text}</text>')
    return "\n".join([*parts, "</svg>", ""])
