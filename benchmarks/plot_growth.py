"""Draw how device time grows with tokens, from what `peers_gpu.py --sections growth` wrote.

python benchmarks/plot_growth.py benchmarks/results/packed-h200.json benchmarks/results/packed-growth.png
"""

from __future__ import annotations

import json
import sys
from pathlib import Path


def main(source: Path, target: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    record = json.loads(source.read_text())
    rows = [row for row in record["rows"] if row["section"] == "growth"]
    figure, axes = pyplot.subplots(figsize=(7, 4.2))
    for line in (row for row in rows if row["name"].startswith("line, ")):
        precision = line["name"].removeprefix("line, ")
        points = [(int(r["shape"].split()[0]), r["ms"]) for r in rows if r["name"] == f"bertopt packed {precision}"]
        tokens = [0, max(number for number, _ in points)]
        (drawn,) = axes.plot(*zip(*points, strict=True), "o", label=f"{precision.upper()}, measured")
        fitted = [line["offset_ms"] + line["us_a_token"] * number / 1e3 for number in tokens]
        label = f"{line['us_a_token']:.3f} us a token + {line['offset_ms']:.2f} ms"
        axes.plot(tokens, fitted, color=drawn.get_color(), linewidth=1, label=label)
    environment = record["environment"]
    axes.set_title(f"Packed BERT-base, sequences of 128, {environment['card']}, {environment['date']}", fontsize=10)
    axes.set_xlabel("tokens of a batch")
    axes.set_ylabel("device time, ms")
    axes.grid(alpha=0.3)
    axes.legend(frameon=False)
    figure.savefig(target, dpi=110, bbox_inches="tight")


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    main(Path(sys.argv[1]), Path(sys.argv[2]))
