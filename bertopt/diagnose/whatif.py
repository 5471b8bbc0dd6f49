"""How long a batch would take if one thing about it were different.

The model is that of a pipeline: a loop that blocks takes the sum of its phases; one that does not takes as long as its slowest
stage. Phases never hold everything, so a prediction is the measured time times the ratio of two modelled ones.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from bertopt.records_diagnosis import Observation


def blocks(o: Observation) -> bool:
    """Whether the host stands still while the device computes: one batch at a time, pageable copies or a stray wait."""
    return (not o.training and o.in_flight < 2) or o.pinned is False or bool(o.synchronizations and o.synchronizations >= 0.5)


def stages(o: Observation) -> dict[str, float]:
    """Milliseconds that each stage needs for a batch; stages overlap, and the longest one sets the pace."""
    device = o.device_ms if o.device_ms is not None else o.device_alone_ms or 0.0
    launch, tokenize, collate = o.launch_ms or 0.0, o.tokenize_ms or 0.0, o.collate_ms or 0.0
    copy_in, copy_out = o.copy_in_ms or 0.0, o.copy_out_ms or 0.0
    loop = o.postprocess_ms or 0.0
    result: dict[str, float] = {}
    if o.training:
        # Between events on the device's stream: what it waits for adds to what it does
        stalled = (o.launch_wait_ms or 0.0) if blocks(o) else 0.0
        return {"step": tokenize + collate + copy_in + copy_out + device + loop + stalled}
    if o.workers is not None:
        result["tokenize"] = o.tokenize_alone_ms if o.tokenize_alone_ms is not None else tokenize / o.workers
    else:
        loop += tokenize
    blocking = blocks(o)
    loop += collate + (copy_in if blocking else 0.0)
    if blocking:
        # The device starts with the first kernel that is launched, so launching and computing go on side by side
        result["loop"] = loop + copy_out + max(launch, device)
        return result
    result["loop"] = loop + max(0.0, launch - (o.launch_wait_ms or 0.0))
    result["device"] = device
    result["copies"] = max(copy_in, copy_out)
    return result


def modelled_ms(o: Observation) -> float:
    """Time of a batch by the model, in milliseconds."""
    return max(stages(o).values())


def predicted_ms(o: Observation, **changes: Any) -> float:
    """Time of a batch with `changes`, in milliseconds; never more than was measured.

    Where they end the blocking, the slowest stage is the prediction as it is: what the loop lost between stages is gone.
    """
    assert o.batch_ms is not None
    changed = replace(o, **changes)
    now, then = modelled_ms(o), modelled_ms(changed)
    if now <= 0:
        return o.batch_ms
    if blocks(o) and not blocks(changed):
        return min(o.batch_ms, then)
    return o.batch_ms * min(1.0, then / now)
