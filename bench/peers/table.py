#!/usr/bin/env python3
"""Makes tables and a chart of the rows that run.py printed: the median of each cell, and the lowest
and the highest if they differ more than twofold.

    bench/peers/table.py bench/results/peers-*.jsonl
    bench/peers/build/plot/bin/python bench/peers/table.py --chart bench/peers/chart.svg ...
    bench/peers/table.py --readme ...       # Hamlyn's rows of the short table of README.md

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
# Of each table: the metric, its unit, and the lengths of messages.
LENGTHS = {16: "16 B", 64: "64 B", 256: "256 B", 1024: "1 KiB", 4096: "4 KiB", 65536: "64 KiB"}
LENGTHS |= {1 << 20: "1 MiB"}
TABLES = [
    ("latency", "one way (ns)", 1.0, [16, 64, 256, 1024, 4096]),
    ("rate", "million/s", 1e6, [16, 64, 256, 1024]),
    ("bandwidth", "GB/s", 1e9, [4096, 65536, 1 << 20]),
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


def columns(table: dict) -> list[tuple[str, str, float, list[int]]]:
    """The tables that have rows, each with the lengths that any peer has."""
    has = {cell for cells in table.values() for cell in cells}
    found = [
        (metric, name, unit, [size for size in sizes if (metric, size) in has])
        for metric, name, unit, sizes in TABLES
    ]
    return [table for table in found if table[-1]]


def one_table(rows: list[dict], table: dict, column: tuple[str, str, float, list[int]]) -> str:
    metric, name, unit, sizes = column
    about = {row["peer"]: row for row in rows}
    header = [f"{metric}, {name}", "receiver gets a", *(LENGTHS[size] for size in sizes)]
    lines = [header, ["---", "---", *["---:"] * len(sizes)]]
    for peer, cells in table.items():
        if not any((metric, size) in cells for size in sizes):
            continue
        line = [f"{peer} {about[peer]['version']}", RECEIVES.get(peer, about[peer]["receives"])]
        for size in sizes:
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
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def markdown(rows: list[dict], table: dict) -> str:
    parts = [one_table(rows, table, column) for column in columns(table)]
    raw = [ns for row in rows for ns in (row["raw_before_ns"], row["raw_after_ns"])]
    first = rows[0]
    note = (
        f"Medians; {first['machine']}, Linux {first['kernel']}, commit {first['commit']}: the raw "
        f"cache line took {statistics.median(raw):.0f} ns one way ({min(raw):.0f} to "
        f"{max(raw):.0f})"
    )
    one_way, per_s = least(rows, 16)
    if one_way:
        note += f", the least checked message {one_way:.0f}, of which {per_s / 1e6:.0f} million/s"
    return "\n\n".join([*parts, f"{note}."])


def least(rows: list[dict], size: int) -> tuple[float, float] | tuple[None, None]:
    """Of the least checked message of a length: nanoseconds one way, and messages a second. Rows of
    before it was measured have none."""
    found = [
        (row["least_one_way_ns"], row["least_per_s"])
        for row in rows
        if "least_per_s" in row and row["size"] == size
    ]
    if not found:
        return None, None
    one_way, per_s = (statistics.median(values) for values in zip(*found, strict=True))
    return one_way, per_s


def readme(rows: list[dict], table: dict) -> str:
    own = table["Hamlyn"]
    ring = "a bare ring that only checks a key and bounds"
    lines = []
    for size in (16, 64):
        one_way, per_s = least(rows, size)
        name = f"{size}-byte message"
        if ("latency", size) in own:
            figure, ring_of = own["latency", size][0], f"{one_way:.0f} ns: {ring}"
            lines.append(f"| {name}, one way | {figure:.0f} ns | {ring_of} |")
        if ("rate", size) in own:
            figure, ring_of = own["rate", size][0] / 1e6, f"{per_s / 1e6:.0f} million/s: that ring"
            lines.append(f"| {name}s, one after another | {figure:.0f} million/s | {ring_of} |")
    return "\n".join(lines)


def chart(table: dict, path: pathlib.Path) -> None:
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "hamlyn"
    import matplotlib.pyplot as plt

    peers = list(reversed(table))
    height = 0.9 + 0.24 * len(peers)
    # One row of charts for each table.
    charts = [
        (line, at, metric, size, f"{LENGTHS[size]}, {name}", unit)
        for line, (metric, name, unit, sizes) in enumerate(columns(table))
        for at, size in enumerate(sizes)
    ]
    across, down = (1 + max(chart[i] for chart in charts) for i in (1, 0))
    figure, axes = plt.subplots(
        down, across, sharey=True, figsize=(14, height * down), squeeze=False
    )
    for axis in axes.flat:
        axis.set_visible(False)
    for line, at, metric, size, name, unit in charts:
        axis = axes[line][at]
        axis.set_visible(True)
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
        better = "less is better" if metric == "latency" else "more is better"
        axis.set_xlabel(better, fontsize=8)
        axis.set_yticks(range(len(peers)), peers, fontsize=8)
        axis.tick_params(axis="x", labelsize=7)
        axis.spines[["top", "right"]].set_visible(False)
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("rows", nargs="*", type=pathlib.Path)
    parser.add_argument(
        "--raw-line", type=float, metavar="NS", help="of the rows [default: that of most]"
    )
    parser.add_argument("--chart", type=pathlib.Path, help="write an SVG there")
    parser.add_argument(
        "--readme", action="store_true", help="print rows of the short table of README.md instead"
    )
    arguments = parser.parse_args()
    paths = arguments.rows or sorted((HERE.parent / "results").glob("peers-*.jsonl"))
    if not paths:
        sys.exit("table: no rows: bench/results/peers-*.jsonl is empty")
    rows = read(paths, arguments.raw_line)
    table = medians(rows)
    print(readme(rows, table) if arguments.readme else markdown(rows, table))
    if arguments.chart:
        chart(table, arguments.chart)


if __name__ == "__main__":
    main()
