#!/usr/bin/env python3
"""Draw the figure of the README: test accuracy by round, as SVG, from a run folder, above the best on the anchors alone.

    python3 scripts/readme_figure.py docs/images/quick.svg results/quick/seed0
"""
import json
import sys
from pathlib import Path

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 720, 360, 56, 140, 40, 48
COLOURS = ["#0072b2", "#d55e00", "#009e73", "#cc79a7"]


def main():
    target, folder = sys.argv[1:]
    lines = (Path(folder) / "rounds.jsonl").read_text().splitlines()
    curve = [(record["round"], record["test_accuracy"]) for record in map(json.loads, lines)]
    floor = json.loads((Path(folder) / "summary.json").read_text())["server_only_accuracy"]
    last = curve[-1][0]
    series = {"FedAnchor": curve, "anchors alone": [(0, floor), (last, floor)]}
    low = min(accuracy for points in series.values() for _, accuracy in points) // 10 * 10
    high = -(-max(accuracy for points in series.values() for _, accuracy in points) // 10) * 10
    x = lambda round_: LEFT + (WIDTH - LEFT - RIGHT) * round_ / last
    y = lambda accuracy: HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * (accuracy - low) / (high - low)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" font-size="13">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>',
        f'<text x="{LEFT}" y="22" font-size="15" fill="#222">Test accuracy by round (%), embedded sample, 30 anchors</text>',
    ]
    for accuracy in range(int(low), int(high) + 1, 10):
        parts.append(f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y(accuracy):.1f}" y2="{y(accuracy):.1f}" stroke="#ddd"/>')
        parts.append(f'<text x="{LEFT - 8}" y="{y(accuracy) + 4:.1f}" text-anchor="end" fill="#555">{accuracy}</text>')
    for round_ in range(0, last + 1, 10):
        parts.append(f'<text x="{x(round_):.1f}" y="{HEIGHT - BOTTOM + 20}" text-anchor="middle" fill="#555">{round_}</text>')
    parts.append(f'<text x="{(LEFT + WIDTH - RIGHT) / 2:.1f}" y="{HEIGHT - 8}" text-anchor="middle" fill="#555">round</text>')
    for colour, (name, points) in zip(COLOURS, series.items()):
        dashes = ' stroke-dasharray="7 5"' if name == "anchors alone" else ""
        path = " ".join(f"{x(round_):.1f},{y(accuracy):.1f}" for round_, accuracy in points)
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2.5"{dashes}/>')
        round_, accuracy = points[-1]
        parts.append(f'<text x="{x(round_) + 8:.1f}" y="{y(accuracy) + 4:.1f}" fill="{colour}">{name} {accuracy:.1f}</text>')
    Path(target).write_text("\n".join(parts + ["</svg>"]) + "\n")


main()
