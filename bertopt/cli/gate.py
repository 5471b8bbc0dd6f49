"""`bertopt predict` and `bertopt gate`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Optional

import typer

from bertopt.cli import options
from bertopt.cli.options import option
from bertopt.errors import BertoptError, UsageError

Proxy = Annotated[bool, typer.Option("--proxy", help="Run the graph of a TensorRT plan on the CPU, where its GPU is not.")]


def predict(
    out: Annotated[Path, option("--out", help="Where the predictions go, as JSON Lines.")],
    plan: Annotated[Optional[Path], option("--plan", help="A plan that bertopt built; needs no torch.")] = None,
    model: Annotated[Optional[str], option("--model", "-m", help="A checkpoint, in eager FP32; or whose --plan it is.")] = None,
    data: options.Data = None,
    bs: Annotated[Optional[int], option("--bs", help="Rows of a batch (default: the plan's, or 32).")] = None,
    seq: Annotated[Optional[int], option("--seq", help="Longest sequence (default: the plan's, or 128).")] = None,
    limit: Annotated[Optional[int], option("--limit", help="The first rows only.")] = None,
    device: options.DeviceOption = options.Device.auto,
    proxy: Proxy = False,
    text_column: options.TextColumn = None,
    text_pair_column: options.PairColumn = None,
    label_column: options.LabelColumn = None,
    encoding: options.Encoding = "utf-8",
) -> None:
    """Answer every row of a file by a plan, or by a checkpoint in FP32, for `bertopt gate` to judge."""
    from bertopt.gate import save_predictions
    from bertopt.gating import read_data
    from bertopt.model import open_checkpoint
    from bertopt.plan import read_manifest
    from bertopt.predict import predict_checkpoint, predict_plan, served_by
    from bertopt.progress import progress

    if plan is None and model is None:
        raise UsageError("bertopt predict wants a --plan, or a --model")
    columns = {"text": text_column, "text_pair": text_pair_column, "label": label_column}
    requests = read_data(data, columns, encoding, limit)
    checkpoint = open_checkpoint(model) if model else None
    with progress() as bar:
        if plan is not None:
            served = served_by(read_manifest(plan), max_length=seq, batch_size=bs)
            found = predict_plan(plan, requests, served=served, model=checkpoint, proxy=proxy, progress=bar)
        else:
            assert checkpoint is not None
            where = options.chosen_device(device)
            found = predict_checkpoint(checkpoint, requests, max_length=seq, batch_size=bs, device=where, progress=bar)
    save_predictions(found, out)
    speed = f"{found.throughput_seq_s:,.0f} seq/s" if found.throughput_seq_s else "speed not measured"
    print(f"{len(found):,} rows answered by {found.name} ({found.backend}, {found.precision}), {speed}: {out}")


def gate(
    reference: Annotated[str, option("--reference", help="What is right: a checkpoint, a plan or predictions.")],
    candidate: Annotated[str, option("--candidate", help="What may take its place: a plan or predictions.")],
    data: options.Data = None,
    metric: Annotated[
        Optional[str],
        option(
            "--metric",
            help="accuracy, f1, mcc, pearson, spearman, agreement or cosine (default: accuracy, or agreement without labels).",
        ),
    ] = None,
    max_drop: Annotated[float, typer.Option("--max-drop", help="Points that the metric may fall.")] = 0.5,
    confidence: Annotated[float, typer.Option("--confidence", help="Of each one-sided test, in percent.")] = 95.0,
    min_agreement: Annotated[float, typer.Option("--min-agreement", help="Labels that must agree, in percent.")] = 90.0,
    min_speedup: Annotated[
        Optional[float], option("--min-speedup", help="Over the reference; accurate but slower fails.")
    ] = None,
    baseline: Annotated[
        Optional[Path], option("--baseline", help="What was last accepted: its predictions or its verdict (--json).")
    ] = None,
    calibration: Annotated[
        Optional[Path], option("--calibration", help="Its cache, none of whose rows may be judged (default: the plan's own).")
    ] = None,
    held_out: Annotated[bool, typer.Option("--held-out", help="Leave calibration rows out rather than refuse them.")] = False,
    proxy: Proxy = False,
    device: options.DeviceOption = options.Device.auto,
    junit: Annotated[Optional[Path], option("--junit", help="Write JUnit XML, a test case a check.")] = None,
    json: Annotated[Optional[Path], option("--json", help="Write the whole verdict.")] = None,
    text_column: options.TextColumn = None,
    text_pair_column: options.PairColumn = None,
    label_column: options.LabelColumn = None,
    encoding: options.Encoding = "utf-8",
) -> int:
    """Judge whether a plan in lower precision may take the place of what runs now, on rows that both answer.

    Exits with 0 where it passes, 1 where it fails, 3 where the rows do not decide, and 2 for wrong input.
    """
    from bertopt import records
    from bertopt.files import write_text
    from bertopt.gate import verdict_lines
    from bertopt.gating import Request, run_gate
    from bertopt.progress import progress
    from bertopt.report.junit import junit_refusal, junit_xml, summary_markdown

    request = Request(
        reference=reference,
        candidate=candidate,
        data=data,
        columns={"text": text_column, "text_pair": text_pair_column, "label": label_column},
        encoding=encoding,
        metric=metric,
        max_drop=max_drop,
        confidence=confidence,
        min_agreement=min_agreement,
        min_speedup=min_speedup,
        baseline=baseline,
        calibration=calibration,
        held_out=held_out,
        proxy=proxy,
        device=options.chosen_device(device),
    )
    try:
        with progress() as bar:
            verdict = run_gate(request, bar)
    except BertoptError as error:
        if junit is not None:
            write_text(junit, junit_refusal(str(error)))
        _summarize(f"### bertopt gate: refused\n\n{error}\n")
        raise
    if json is not None:
        write_text(json, records.to_json(verdict))
    if junit is not None:
        write_text(junit, junit_xml(verdict))
    _summarize(summary_markdown(verdict))
    print("\n".join(verdict_lines(verdict)))
    return verdict.exit_code


def _summarize(markdown: str) -> None:
    """Append to the job summary, where GitHub Actions runs this."""
    if path := os.environ.get("GITHUB_STEP_SUMMARY"):
        with open(path, "a", encoding="utf-8") as file:
            file.write(markdown)
