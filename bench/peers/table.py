#!/usr/bin/env python3
"""Makes a table and a chart of the rows that run.py printed: the median of each cell, and the
lowest and the highest if they differ more than twofold.

    bench/peers/table.py bench/results/peers-*.jsonl
    bench/peers/build/plot/bin/python bench/peers/table.py --chart bench/peers/chart.svg ...

Only rows whose raw lines agree within a quarter are compared: with the line of most rows, or with
the requested one. A cell without such a row is empty, and so is a cell that a peer does not have.
Prints Markdown; the chart needs matplotlib.
"""

import argparse
import collections
import json
import pathlib
import statistics
import sys

# How a receiver gets a message, for earlier rows that have another word for it.
RECEIVES = {"Hamlyn, stream through an aperture": "copy, 4 KiB at a time"}

HERE = pathlib.Path(__file__).resolve().parent
COLUMNS = [
    ("latency", 16, "16 B, one way (ns)", 1.0),
    ("rate", 16, "16 B (million/s)", 1e6),
    ("bandwidth", 4096, "4 KiB (GB/s)", 1e9),
    ("bandwidth", 65536, "64 KiB (GB/s)", 1e9),
    ("bandwidth", 1 << 20, "1 MiB (GB/s)", 1e9),
]


def raw_line(row: dict) -> float:
    """Beside which the row was measured, in nanoseconds."""
    return (row["raw_before_ns"] + row["raw_after_ns"]) / 2


def agree(a: float, b: float) -> bool:
    """As run.py has it."""
    return abs(a - b) <= min(a, b) / 4


def commonest_line(lines: list[float]) -> float:
    """The raw line with which most of these agree, the shortest of several."""
    return max(sorted(lines), key=lambda line: sum(agree(line, other) for other in lines))


def read(paths: list[pathlib.Path], wanted_ns: float | None) -> list[dict]:
    """The rows beside the wanted raw line, or beside the commonest."""
    rows = [json.loads(line) for path in paths for line in path.read_text().splitlines()]
    if not rows:
        sys.exit("table: there are no rows")
    lines = [raw_line(row) for row in rows]
    line = commonest_line(lines) if wanted_ns is None else wanted_ns
    kept = [row for row in rows if agree(line, raw_line(row))]
    if not kept:
        found = ", ".join(f"{line:.0f}" for line in sorted(lines))
        sys.exit(f"table: no row is beside a raw line of {line:.0f} ns; there are: {found}")
    machines = {(row["machine"], row["kernel"], row["commit"]) for row in kept}
    if len(machines) > 1:
        sys.exit(f"table: rows of different machines or commits do not compare: {sorted(machines)}")
    return kept


def medians(rows: list[dict]) -> dict[str, dict[tuple[str, int], tuple[float, list[float]]]]:
    """Of each peer, in the order of the rows, and each cell: the median and all values, sorted."""
    values = collections.defaultdict(lambda: collections.defaultdict(list))
    for row in rows:
        values[row["peer"]][row["metric"], row["size"]].append(row["value"])
    return {
        peer: {cell: (statistics.median(found), sorted(found)) for cell, found in cells.items()}
        for peer, cells in values.items()
    }


def is_best(cell: tuple[str, int], value: float, table: dict) -> bool:
    column = [cells[cell][0] for cells in table.values() if cell in cells]
    return value == (min(column) if cell[0] == "latency" else max(column))


def shown(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}"


def markdown(rows: list[dict], table: dict) -> str:
    about = {row["peer"]: row for row in rows}
    header = ["peer", "receiver gets a", *(name for _, _, name, _ in COLUMNS)]
    lines = [header, ["---", "---", *["---:"] * len(COLUMNS)]]
    for peer, cells in table.items():
        line = [f"{peer} {about[peer]['version']}", RECEIVES.get(peer, about[peer]["receives"])]
        for metric, size, _, unit in COLUMNS:
            if (metric, size) not in cells:
                line.append("")
                continue
            value, of_cell = cells[metric, size]
            text = shown(value / unit)
            if is_best((metric, size), value, table):
                text = f"**{text}**"
            if len(of_cell) == 1:
                text += " (one run)"
            elif of_cell[-1] > 2 * of_cell[0]:
                text += f" ({shown(of_cell[0] / unit)} to {shown(of_cell[-1] / unit)})"
            line.append(text)
        lines.append(line)
    raw = [ns for row in rows for ns in (row["raw_before_ns"], row["raw_after_ns"])]
    first = rows[0]
    note = (
        f"Medians; {first['machine']}, Linux {first['kernel']}, commit {first['commit']}: the raw "
        f"cache line took {statistics.median(raw):.0f} ns one way ({min(raw):.0f} to "
        f"{max(raw):.0f})"
    )
    # Rows of before it was measured have none.
    least = [(row["least_one_way_ns"], row["least_per_s"]) for row in rows if "least_per_s" in row]
    if least:
        one_way, per_s = (statistics.median(values) for values in zip(*least, strict=True))
        note += f", the least checked message {one_way:.0f}, of which {per_s / 1e6:.0f} million/s"
    note += "."
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + f"\n\n{note}"


def chart(table: dict, path: pathlib.Path) -> None:
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "hamlyn"
    import matplotlib.pyplot as plt

    peers = list(reversed(table))
    height = 0.9 + 0.24 * len(peers)
    figure, axes = plt.subplots(1, len(COLUMNS), sharey=True, figsize=(14, height))
    for axis, (metric, size, name, unit) in zip(axes, COLUMNS, strict=True):
        found = [(at, table[peer].get((metric, size))) for at, peer in enumerate(peers)]
        bars = [(at, cell[0] / unit) for at, cell in found if cell]
        colours = ["#c0392b" if "Hamlyn" in peers[at] else "#7f8c8d" for at, _ in bars]
        axis.barh([at for at, _ in bars], [value for _, value in bars], color=colours)
        axis.set_xscale("log")
        values = [value for _, value in bars] or [1.0]
        # A bar on a logarithmic axis begins somewhere; the same small distance below the least.
        axis.set_xlim(min(values) / 2, max(values) * 4)
        for at, value in bars:
            axis.text(value * 1.08, at, shown(value), va="center", fontsize=7)
        axis.set_title(name, fontsize=9)
        axis.set_yticks(range(len(peers)), peers, fontsize=8)
        axis.tick_params(axis="x", labelsize=7)
        axis.spines[["top", "right"]].set_visible(False)
    better = ["less is better", *["more is better"] * (len(COLUMNS) - 1)]
    for axis, text in zip(axes, better, strict=True):
        axis.set_xlabel(text, fontsize=8)
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("rows", nargs="*", type=pathlib.Path)
    parser.add_argument(
        "--raw-line", type=float, metavar="NS", help="of the rows [default: that of most]"
    )
    parser.add_argument("--chart", type=pathlib.Path, help="write an SVG there")
    arguments = parser.parse_args()
    paths = arguments.rows or sorted((HERE.parent / "results").glob("peers-*.jsonl"))
    if not paths:
        sys.exit("table: no rows: bench/results/peers-*.jsonl is empty")
    rows = read(paths, arguments.raw_line)
    table = medians(rows)
    print(markdown(rows, table))
    if arguments.chart:
        chart(table, arguments.chart)


if __name__ == "__main__":
    main()
