"""The accuracy gate: reference and candidate predictions of the same rows -> passed, failed or inconclusive, with the reasons.

    reference = load_predictions("fp32.jsonl")
    candidate = load_predictions("int8.jsonl")
    verdict = judge(reference, candidate, data.labels, metric="accuracy", max_drop=0.5, groups=data.groups, texts=data.texts)
    print("\\n".join(verdict_lines(verdict)))

`predictions` is the file format, `align` brings both to the same rows, `reference` refuses what proves nothing, `metrics`,
`intervals` and `drop` are the statistics, `checks` is everything that can fail, `decide` puts it together. Nothing here runs
a model or needs more than numpy.
"""

from bertopt.gate.align import refuse_untrained
from bertopt.gate.decide import judge
from bertopt.gate.predictions import Predictions, load_predictions, save_predictions, text_hash, text_hashes
from bertopt.gate.text import verdict_lines
from bertopt.gate.verdict import GateVerdict, load_baseline, load_verdict, stamp

__all__ = [
    "GateVerdict",
    "Predictions",
    "judge",
    "load_baseline",
    "load_predictions",
    "load_verdict",
    "refuse_untrained",
    "save_predictions",
    "stamp",
    "text_hash",
    "text_hashes",
    "verdict_lines",
]
