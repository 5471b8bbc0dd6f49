"""TensorRT plans on a card: speed, answers, and memory over ten thousand shapes. No torch.

    python benchmarks/tensorrt_h200.py --prepared /tmp/bench --out results [--tactics internal]

`--prepared` is what `tensorrt_prepare.py` wrote. Prints one table and writes `tensorrt.json`. About five minutes on an
H200 with TensorRT 8.6, nearly all of it building. `--tactics internal` where cuBLAS is absent; the results say so.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import numpy as np

from bertopt.backends.base import Options
from bertopt.backends.driver import device
from bertopt.backends.tensorrt import TensorRtSession
from bertopt.batching import Batch, Bucketed, Padded, batches, choose_edges
from bertopt.build import build_plan
from bertopt.plan import open_plan
from bertopt.profiles import Profile, from_edges
from bertopt.tokens import Tokens

LAUNCHES, REPEATS = 200, 5
SHAPES, SETTLED = 10_000, 2_000  # random batches, and how many of them may still allocate
LATENCY, THROUGHPUT, ANY = 0, 1, 2  # BERT-base's profiles: two of one shape each, and one for whatever comes
BASE_PROFILES = (
    Profile((1, 128), (1, 128), (1, 128)),
    Profile((32, 128), (32, 128), (32, 128)),
    Profile((1, 1), (32, 128), (32, 128)),
)
OVERFLOW_PROFILES = (Profile((1, 1), (8, 64), (8, 160)),)


class Model:
    """A prepared model, its plan, and a session on it."""

    def __init__(
        self, folder: Path, out: Path, profiles: tuple[Profile, ...], tactics: str, edges: tuple[int, ...] = ()
    ) -> None:
        stored = np.load(folder / "answers.npz")
        self.name, self.tokens = folder.name, Tokens(stored["ids"], stored["offsets"])
        self.logits, self.truth = stored["logits"], stored.get("truth")
        path = out / f"{folder.name}.plan"
        start = time.perf_counter()
        result = build_plan(
            folder / "half.onnx",
            path,
            target="tensorrt",
            profiles=profiles,
            bucket_edges=edges,
            tactics=tactics,
            rebuild="python benchmarks/tensorrt_h200.py",
        )
        self.build_s = time.perf_counter() - start
        print(f"\n{folder.name}: built in {self.build_s:.0f} s", flush=True)
        print("\n".join(f"  {line}" for line in result.lines()), flush=True)
        self.plan = open_plan(path)
        self.session = TensorRtSession(self.plan, Options(device="cuda", in_flight=2))

    def answers(self, groups: list[Batch]) -> Any:
        """Logits in the rows' own order."""
        logits = np.full((len(self.tokens), self.logits.shape[1]), np.nan, np.float32)
        for batch in groups:
            logits[batch.positions] = self.session.launch(self.session.stage(batch)).result()
        return logits


def device_ms(model: Model, profile: int, rows: int, length: int, *, captured: bool) -> float:
    """Median over repeats of the mean time of launches back to back, nothing copied between them."""
    session, engine = model.session, model.session.engine
    filler = np.arange(rows * length, dtype=np.int32) % 20_000 + 1000
    batch = Batch(np.arange(rows), Tokens(filler, np.arange(rows + 1) * length), Padded(rows, length))
    session.launch(session.stage(batch)).result()  # leaves its inputs in place
    run = lambda: engine.run(profile, (rows, length))  # noqa: E731
    if not captured:
        context = engine._context(profile)
        engine._bind(context, (rows, length))
        run = lambda: engine._enqueue(context)  # noqa: E731
    for _ in range(20):
        run()
    times = []
    for _ in range(REPEATS):
        start, end = session.cuda.Event(), session.cuda.Event()
        start.record(session.compute)
        for _ in range(LAUNCHES):
            run()
        end.record(session.compute).synchronize()
        times.append(end.time_since(start) / LAUNCHES)
    return float(np.median(times))


def parity(model: Model, rows: int = 32) -> dict[str, Any]:
    """Largest difference from eager FP32 on batches of mixed lengths with padding, in the order of arrival."""
    groups = [
        Batch(np.arange(s, min(s + rows, len(model.tokens))), part, Padded(len(part), int(part.lengths.max())))
        for s in range(0, len(model.tokens), rows)
        for part in [model.tokens.take(np.arange(s, min(s + rows, len(model.tokens))))]
    ]
    found = model.answers(groups)
    return {
        "rows": len(found),
        "finite": bool(np.isfinite(found).all()),
        "largest_difference": float(np.abs(found - model.logits).max()),
        "logit_spread": float(model.logits.std()),
        "label_agreement_percent": float((found.argmax(1) == model.logits.argmax(1)).mean() * 100),
    }


def accuracy(model: Model, edges: tuple[int, ...]) -> dict[str, Any]:
    """Accuracy as served: bucketed, at the plan's own edges."""
    assert model.truth is not None
    found = model.answers(list(batches([model.tokens], Bucketed(32, edges, 1024))))
    right = lambda logits: float((logits.argmax(1) == model.truth).mean() * 100)  # noqa: E731
    return {
        "rows": len(found),
        "fp32_percent": right(model.logits),
        "fp16_percent": right(found),
        "label_agreement_percent": float((found.argmax(1) == model.logits.argmax(1)).mean() * 100),
        "finite": bool(np.isfinite(found).all()),
    }


def throughput(model: Model, edges: tuple[int, ...]) -> float:
    """Rows a second over all texts, two batches in flight, tokens ready: the device's ceiling for a pipeline."""
    groups = list(batches([model.tokens], Bucketed(32, edges, 1024)))
    best = 0.0
    for _ in range(REPEATS):
        start, waiting = time.perf_counter(), []
        for batch in groups:
            waiting.append(model.session.launch(model.session.stage(batch)))
            if len(waiting) == 2:
                waiting.pop(0).result()
        for pending in waiting:
            pending.result()
        best = max(best, len(model.tokens) / (time.perf_counter() - start))
    return best


def memory(model: Model) -> dict[str, Any]:
    """Free device memory over random shapes inside the profiles; steady once it has settled."""
    rng, session, free = np.random.default_rng(0), model.session, []
    most, longest = model.plan.profiles[-1].max
    broken, start = 0, time.perf_counter()
    for index in range(SHAPES):
        rows, length = int(rng.integers(1, most + 1)), int(rng.integers(2, longest + 1))
        lengths = rng.integers(2, length + 1, rows)
        ids = rng.integers(1000, 20_000, int(lengths.sum())).astype(np.int32)
        tokens = Tokens(ids, np.append(0, np.cumsum(lengths)))
        found = session.launch(session.stage(Batch(np.arange(rows), tokens, Padded(rows, length)))).result()
        broken += not (found.shape == (rows, model.logits.shape[1]) and np.isfinite(found).all())
        if index % 500 == 499:
            free.append(session.cuda.mem_get_info()[0] / 2**20)
    settled = free[SETTLED // 500 - 1 :]
    return {
        "batches": SHAPES,
        "broken": int(broken),
        "seconds": time.perf_counter() - start,
        "free_mib": free,
        "growth_mib": max(settled) - min(settled),
        "peak_mib": session.peak_device_mib(),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prepared", required=True, type=Path)
    parser.add_argument("--out", required=True, type=Path)
    parser.add_argument("--plans", type=Path, help="where plans and timing caches go; --out by default")
    parser.add_argument("--tactics", choices=("all", "internal"), default="all")
    options = parser.parse_args()
    plans = options.plans or options.out
    options.out.mkdir(parents=True, exist_ok=True)
    results: dict[str, Any] = {"device": str(device()), "date": time.strftime("%Y-%m-%d")}

    def keep(name: str, value: Any) -> None:
        """Every figure is on disk as soon as it is known."""
        results[name] = value
        (options.out / "tensorrt.json").write_text(json.dumps(results, indent=1) + "\n")
        print(f"  {name}: {value}", flush=True)

    model = Model(options.prepared / "overflow", plans, OVERFLOW_PROFILES, options.tactics)
    keep("overflow", parity(model, rows=8) | {"fp32_nodes": len(model.plan.manifest.fp32_nodes), "build_s": model.build_s})
    model.session.close()

    stored = np.load(options.prepared / "trained" / "answers.npz")
    lengths = np.diff(stored["offsets"])
    edges = choose_edges(lengths[:2048], int(lengths.max()), batch_size=32, window=1024)
    model = Model(options.prepared / "trained", plans, from_edges(edges, 32), options.tactics, edges)
    keep("version", model.session.version)
    keep("trained", accuracy(model, edges) | {"edges": edges, "build_s": model.build_s, "seq_s": throughput(model, edges)})
    keep("memory", memory(model))
    keep("version_after", model.session.version)
    model.session.close()

    model = Model(options.prepared / "bert-base", plans, BASE_PROFILES, options.tactics)
    keep("bert_base_parity", parity(model))
    for name, rows, profile in (("bs32", 32, THROUGHPUT), ("bs32_any", 32, ANY), ("bs1", 1, LATENCY)):
        for captured in (True, False):
            how = "graph" if captured else "enqueue"
            keep(f"bert_base_{name}_{how}_ms", device_ms(model, profile, rows, 128, captured=captured))
    keep("bert_base_peak_mib", model.session.peak_device_mib())
    keep("bert_base_build_s", model.build_s)
    model.session.close()
    print("\n" + table(results), flush=True)


def table(found: dict[str, Any]) -> str:
    """What was asked for beside what was found."""
    trained, base, memory_, over = found["trained"], found["bert_base_parity"], found["memory"], found["overflow"]
    kept = f"{over['fp32_nodes']}, {over['finite']}, {over['label_agreement_percent']:.2f} %"
    rows = [
        ("BERT-base, bs 32, seq 128, device only", "2.4 ms", f"{found['bert_base_bs32_graph_ms']:.3f} ms"),
        ("the same in a profile from 1 x 1 to 32 x 128", "", f"{found['bert_base_bs32_any_graph_ms']:.3f} ms"),
        ("BERT-base, bs 1, seq 128, device only", "0.56 ms", f"{found['bert_base_bs1_graph_ms']:.3f} ms"),
        ("BERT-base, mixed lengths, largest logit difference", "0.01", f"{base['largest_difference']:.4f}"),
        ("trained, accuracy FP16 - FP32", "0.1 points", f"{trained['fp16_percent'] - trained['fp32_percent']:+.3f} points"),
        ("trained, labels agree", "99.8 %", f"{trained['label_agreement_percent']:.3f} %"),
        ("trained, tokens ready, bucketed", "", f"{trained['seq_s']:,.0f} seq/s"),
        ("10,000 random shapes: memory, broken batches", "0", f"{memory_['growth_mib']:.0f} MiB, {memory_['broken']}"),
        ("overflow, nodes in FP32, finite, labels agree", "", kept),
    ]
    lines = [f"{found['device']}, {found['version']}", f"{'what':<52} {'asked':>10}  found"]
    return "\n".join(lines + [f"{what:<52} {asked:>10}  {got}" for what, asked, got in rows])


if __name__ == "__main__":
    main()
