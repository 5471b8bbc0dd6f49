"""The rules: each looks at one observation and returns a finding, or abstains.

A rule abstains where a figure that it needs was not measured: nothing is concluded from what is not known. How much mending
gives back comes from `whatif`, so that all findings are ranked by one measure.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from bertopt.diagnose.policy import Policy
from bertopt.diagnose.whatif import blocks, predicted_ms, stages
from bertopt.measure import arithmetic
from bertopt.records_diagnosis import Finding, Observation

Look = Callable[[Observation, Policy], Finding | None]


@dataclass(frozen=True)
class Rule:
    """One verdict and when it holds. States say what binds once nothing is wasted, so they come after faults."""

    verdict: str
    look: Look
    state: bool = False


def _fault(o: Observation, verdict: str, why: str, least: float, **mended: Any) -> Finding | None:
    """A finding if `mended` gives back more than the share `least` of a batch's time."""
    if o.batch_ms is None:
        return None
    after = predicted_ms(o, **mended)
    if 1 - after / o.batch_ms < least:
        return None
    return Finding(verdict, why, o.batch_ms - after, after)


def _share(part: float | None, whole: float | None) -> str:
    return f"{part / whole:.0%}" if part is not None and whole else "an unknown share"


def tokenize_bound(o: Observation, p: Policy) -> Finding | None:
    """Tokenizing on the loop's own thread, or workers that do not keep up."""
    if o.batch_ms is None or o.tokenize_ms is None:
        return None
    if o.training:
        why = f"the loop waits {o.tokenize_ms:.1f} ms of a step's {o.batch_ms:.1f} for its input"
        return _fault(o, "TOKENIZE-BOUND", why, p.worth, tokenize_ms=0.0)
    tokenizing, alone = o.tokenize_ms, o.tokenize_alone_ms
    faster = o.tokenize_fast_ms is not None and o.tokenize_fast_ms < 0.7 * tokenizing
    mended = _less_tokenizing(o, faster)
    how = "serially" if o.workers is None else f"with {o.workers} worker{'s' if o.workers > 1 else ''}"
    pace = alone if alone is not None and o.workers is not None else tokenizing
    why = f"a batch costs {pace:.1f} ms of tokenizing {how}, of {o.batch_ms:.1f} ms in all"
    if o.device_ms is not None:
        why += f", and the device needs {o.device_alone_ms or o.device_ms:.1f}"
    if faster:
        why += f"; the Rust tokenizer takes {o.tokenize_fast_ms:.1f} on one core"
    fault = _fault(o, "TOKENIZE-BOUND", why, p.worth, **mended)
    return _waits_for_tokens(o, p, why, mended) if fault is None else fault


def _less_tokenizing(o: Observation, faster: bool) -> dict[str, Any]:
    """What the next step changes: the Rust tokenizer, workers, one worker more, or no tokenizing where no core is left."""
    tokenizing = o.tokenize_ms or 0.0
    if faster and o.tokenize_fast_ms is not None:
        mended: dict[str, Any] = {"tokenize_ms": o.tokenize_fast_ms}
        return mended if o.workers is None else mended | {"tokenize_alone_ms": o.tokenize_fast_ms / o.workers}
    if o.workers is None:
        if o.device_ms is None:
            return {}
        # Workers of their own cores; on one core tokenizing still takes what computing needs
        workers = min(arithmetic.workers_needed(tokenizing, o.device_ms), o.cores or 1)
        return {"workers": workers, "in_flight": 2, "tokenize_alone_ms": tokenizing / workers}
    if all_cores_tokenize(o):
        return {"tokenize_alone_ms": 0.0}
    now = o.tokenize_alone_ms if o.tokenize_alone_ms is not None else tokenizing / o.workers
    return {"workers": o.workers + 1, "tokenize_alone_ms": now * o.workers / (o.workers + 1)}


def all_cores_tokenize(o: Observation) -> bool:
    """Whether there are as many workers as cores: one more would only take from the others."""
    return o.workers is not None and o.cores is not None and o.workers >= o.cores


def _waits_for_tokens(o: Observation, p: Policy, why: str, mended: dict[str, Any]) -> Finding | None:
    """The tokenizer as what binds, however little the next step brings: its pace is the pipeline's, and the device's is not."""
    alone, device = o.tokenize_alone_ms, o.device_alone_ms
    if o.batch_ms is None or o.workers is None or alone is None or device is None:
        return None
    if alone < p.reached * o.batch_ms or device > (1 - p.balanced) * alone:
        return None
    after = predicted_ms(o, **mended)
    why += f": {min(1.0, alone / o.batch_ms):.0%} of the tokenizer's ceiling is reached"
    if (loop := stages(o)["loop"]) > device:
        why += f", and what the loop's own thread does comes next, {loop:.1f} ms"
    return Finding("TOKENIZE-BOUND", why, o.batch_ms - after, after, state=True)


def collate_bound(o: Observation, p: Policy) -> Finding | None:
    if o.batch_ms is None or o.collate_ms is None:
        return None
    what = "the loop waits for its collated input" if o.training else "grouping, padding and filling the buffers take"
    why = f"{what} {o.collate_ms:.1f} ms of a batch's {o.batch_ms:.1f} on the loop's own thread"
    if o.collate_alone_ms is not None:
        why += f", and {o.collate_alone_ms:.1f} alone"
    return _fault(o, "COLLATE-BOUND", why, p.worth, collate_ms=0.0)


def pageable_copy(o: Observation, p: Policy) -> Finding | None:
    """Buffers in pageable memory: their copies block, so the host stands still while the device works."""
    if o.pinned is not False or o.batch_ms is None or o.device_ms is None or o.copy_in_ms is None:
        return None
    copies = o.copy_in_ms + (o.copy_out_ms or 0.0)
    why = f"copies from pageable memory block: {copies:.2f} ms a batch, and the loop stands still meanwhile"
    if o.copy_pageable_ms is not None and o.copy_pinned_ms is not None:
        why += f"; alone {o.copy_pageable_ms:.3f} ms against {o.copy_pinned_ms:.3f} pinned"
    why += f"; a batch takes {o.batch_ms:.1f} ms and the device {o.device_ms:.1f}"
    return _fault(o, "PAGEABLE-COPY", why, p.structural, pinned=True, in_flight=2, copy_in_ms=0.0, copy_out_ms=0.0)


def transfer_bound(o: Observation, p: Policy) -> Finding | None:
    if o.pinned is not True or o.batch_ms is None or o.copy_in_ms is None:
        return None
    copies = o.copy_in_ms + (o.copy_out_ms or 0.0)
    why = f"copies take {copies:.2f} ms of a batch's {o.batch_ms:.1f} although they are pinned"
    return _fault(o, "TRANSFER-BOUND", why, p.worth, copy_in_ms=0.0, copy_out_ms=0.0)


def sync_stalled(o: Observation, p: Policy) -> Finding | None:
    """The host waits for the device in the middle of launching, where buffers are pinned and two batches could be in flight."""
    if o.batch_ms is None or not o.synchronizations or o.synchronizations < 0.5 or o.device_ms is None:
        return None
    if o.pinned is False or (o.in_flight < 2 and not o.training):
        return None  # such a loop waits by design, and the rules of its design speak
    waited = "" if o.launch_wait_ms is None else f" and stood still for {o.launch_wait_ms:.1f} ms"
    why = (
        f"the host waited for the device {o.synchronizations:.1f} times a batch while launching{waited}: "
        f"a batch takes {o.batch_ms:.1f} ms and the device {o.device_ms:.1f}"
    )
    return _fault(o, "SYNC-STALLED", why, p.structural, synchronizations=0.0, in_flight=2)


def launch_bound(o: Observation, p: Policy) -> Finding | None:
    """Kernels that run in little of the time in which the device is given batches."""
    if o.kernel_busy is None or o.device_ms is None or not o.batch_ms:
        return None
    # Of a training loop's step the wait for its input is a part, and launching is not to blame for it
    busy = min(1.0, o.kernel_busy * o.batch_ms / o.device_ms) if o.training and o.device_ms else o.kernel_busy
    if busy > p.kernels_idle:
        return None
    where = "the device's part of a step" if o.training else "the time of batches that lie ready"
    span = "" if o.span is None else f", and batches span {o.span:.0%} of a pass"
    many = "" if not o.kernels else f"; {o.kernels:.0f} kernels a batch, {1e3 * o.device_ms / o.kernels:.0f} us each"
    why = f"kernels run in {busy:.0%} of {where}{span}{many}"
    return _fault(o, "LAUNCH-BOUND", why, p.worth, device_ms=o.device_ms * busy, launch_ms=0.0)


def underfilled(o: Observation, p: Policy) -> Finding | None:
    """Device time that stays flat as the batch grows: there is room for more rows."""
    if len(o.growth) < 2 or o.device_ms is None:
        return None
    here = o.growth[0]
    # Where the loop blocks, each of these batches waited as well, whatever its rows: mending that is another rule's to say
    waited = max(0.0, here.device_ms - o.device_ms) if blocks(o) else 0.0
    per_row = {g.rows: max(0.0, g.device_ms - waited) / g.rows for g in o.growth}
    best = min(o.growth, key=lambda g: per_row[g.rows])
    ratio = per_row[best.rows] / per_row[here.rows]
    if best.rows == here.rows or ratio > p.flat:
        return None
    why = (
        f"{best.rows} rows take the device {best.device_ms:.2f} ms and {here.rows} take {here.device_ms:.2f}: "
        f"a row costs {1 - ratio:.0%} less in the larger batch"
    )
    # Launching costs by the call, whatever the rows; what collating costs was measured
    fewer: dict[str, Any] = {}
    if o.launch_ms is not None:
        fewer["launch_ms"] = o.launch_ms * here.rows / best.rows
    if o.collate_ms is not None and here.collate_ms and best.collate_ms is not None:
        fewer["collate_ms"] = o.collate_ms * min(1.0, best.collate_ms / best.rows * here.rows / here.collate_ms)
    return _fault(o, "UNDERFILLED", why, p.worth, device_ms=o.device_ms * ratio, **fewer)


def padding_waste(o: Observation, p: Policy) -> Finding | None:
    if o.padding_fraction is None or o.padding_fraction < p.padding or o.device_ms is None:
        return None
    left = o.bucketed_padding_fraction if o.bucketed_padding_fraction is not None else 0.0
    attention = "" if o.attention_waste_fraction is None else f" and {o.attention_waste_fraction:.0%} of the attention"
    why = f"{o.padding_fraction:.0%} of the tokens that are computed{attention} are padding"
    if o.bucketed_device_ms is not None and o.device_alone_ms:
        ratio = o.bucketed_device_ms / o.device_alone_ms
        why += f"; in length buckets the same rows take the device {o.bucketed_device_ms:.1f} ms, not {o.device_alone_ms:.1f}"
    else:
        ratio = (1 - o.padding_fraction) / (1 - left)
        if o.bucketed_padding_fraction is not None:
            why += f"; length buckets would leave {left:.0%}"
    return _fault(o, "PADDING-WASTE", why, p.worth, device_ms=o.device_ms * min(1.0, ratio))


def postprocess_bound(o: Observation, p: Policy) -> Finding | None:
    if o.batch_ms is None or o.postprocess_ms is None:
        return None
    why = f"answers take {o.postprocess_ms:.1f} ms of a batch's {o.batch_ms:.1f} on the loop's own thread"
    if o.device_ms is not None:
        why += f"; the device needs {o.device_ms:.1f}"
    return _fault(o, "POSTPROCESS-BOUND", why, p.worth, postprocess_ms=0.0)


def cores_contended(o: Observation, p: Policy) -> Finding | None:
    """Slower beside the rest of the pipeline than on batches that lie ready: something takes what it computes with."""
    if o.batch_ms is None or o.device_alone_ms is None or o.device_ms is None:
        return None
    if o.device_ms < (1 + p.contended) * o.device_alone_ms:
        return None
    where = "cores" if o.device == "cpu" else "card or its host"
    spans = "" if o.span is None else f" and spans {o.span:.0%} of the time"
    why = (
        f"a batch takes the device {o.device_ms:.1f} ms{spans}, and {o.device_alone_ms:.1f} where batches lie ready: "
        f"tokenizing, or another process, is on the same {where}"
    )
    return _fault(o, "CORES-CONTENDED", why, p.worth, device_ms=o.device_alone_ms)


def _device_binds(o: Observation, p: Policy) -> bool:
    """The device sets the pace, and kernels run while it does."""
    if o.batch_ms is None or (o.device_alone_ms is None and o.device_ms is None):
        return False
    alone = o.device_alone_ms if o.device_alone_ms is not None else o.device_ms
    tokenizing = o.tokenize_alone_ms if o.workers is not None else None
    if tokenizing is not None and alone is not None and tokenizing > alone:
        return False
    return (alone or 0.0) / o.batch_ms >= p.reached and launch_bound(o, p) is None


def memory_bound(o: Observation, p: Policy) -> Finding | None:
    if not _device_binds(o, p) or (o.ceiling_share is not None and o.ceiling_share > p.low_arithmetic):
        return None
    if o.card is not None and o.card.dram_active is not None:
        if o.card.dram_active < p.memory:
            return None
        why = f"the card's memory moves {o.card.dram_active:.0%} of what it can"
    elif o.weight_bytes is not None and o.bandwidth_b_s is not None:
        # Weights are read once a batch at least; activations come on top
        device = o.device_alone_ms or o.device_ms or 0.0
        moved = 1e3 * o.weight_bytes / device
        if moved < p.memory * o.bandwidth_b_s:
            return None
        why = f"the weights alone are {moved / 1e9:.1f} GB/s, and a plain copy reaches {o.bandwidth_b_s / 1e9:.1f}"
    else:
        return None
    if o.ceiling_share is not None:
        why += f", while arithmetic is at {o.ceiling_share:.0%} of its ceiling"
    return Finding("MEMORY-BOUND", why, state=True)


def compute_bound(o: Observation, p: Policy) -> Finding | None:
    if not _device_binds(o, p) or memory_bound(o, p) is not None:
        return None
    alone = o.device_alone_ms or o.device_ms
    why = f"the device alone takes {alone:.1f} ms a batch, the whole service {o.batch_ms:.1f}"
    if o.flop_s is not None and o.ceiling_share is not None:
        why += (
            f", at {o.flop_s / 1e12:.3g} TFLOP/s, {o.ceiling_share:.0%} of the {(o.ceiling_flop_s or 0) / 1e12:.3g} "
            f"that a large product reaches in {o.precision or 'this precision'}"
        )
    if o.padding_fraction is not None:
        why += f"; {o.padding_fraction:.0%} of its tokens are padding"
    return Finding("COMPUTE-BOUND", why, state=True)


def power_limited(o: Observation, p: Policy) -> Finding | None:
    card = o.card
    if card is None or not card.throttled or not _device_binds(o, p):
        return None
    reason, share = max(card.throttled.items(), key=lambda item: item[1])
    if share < p.throttled or card.sm_clock_mhz is None or not card.max_sm_clock_mhz:
        return None
    lost = 1 - card.sm_clock_mhz / card.max_sm_clock_mhz
    if lost < p.clocks_lost:
        return None
    power = "" if card.power_w is None else f", at {card.power_w:.0f} W"
    limit = "" if card.power_limit_w is None else f" of {card.power_limit_w:.0f}"
    why = (
        f"{reason} held the clocks back in {share:.0%} of {card.samples} samples: {card.sm_clock_mhz:.0f} of "
        f"{card.max_sm_clock_mhz:.0f} MHz{power}{limit}"
    )
    return Finding("POWER-LIMITED", why, state=True)


def balanced(o: Observation, p: Policy) -> Finding | None:
    """Two stages that overlap and take about as long: speeding up one alone brings little."""
    if o.batch_ms is None or o.workers is None or o.tokenize_alone_ms is None or o.device_alone_ms is None:
        return None
    second, first = sorted([o.device_alone_ms, o.tokenize_alone_ms])
    if first <= 0 or 1 - second / first > p.balanced or first / o.batch_ms < p.reached or launch_bound(o, p) is not None:
        return None
    why = (
        f"alone, a batch takes {o.tokenize_alone_ms:.1f} ms of tokenizing and {o.device_alone_ms:.1f} on the device, and "
        f"{o.batch_ms:.1f} with both at once: speeding up one brings little"
    )
    return Finding("BALANCED", why, state=True)


RULES: tuple[Rule, ...] = (
    Rule("TOKENIZE-BOUND", tokenize_bound),
    Rule("COLLATE-BOUND", collate_bound),
    Rule("PAGEABLE-COPY", pageable_copy),
    Rule("TRANSFER-BOUND", transfer_bound),
    Rule("SYNC-STALLED", sync_stalled),
    Rule("LAUNCH-BOUND", launch_bound),
    Rule("UNDERFILLED", underfilled),
    Rule("PADDING-WASTE", padding_waste),
    Rule("POSTPROCESS-BOUND", postprocess_bound),
    Rule("CORES-CONTENDED", cores_contended),
    Rule("POWER-LIMITED", power_limited, state=True),
    Rule("BALANCED", balanced, state=True),
    Rule("COMPUTE-BOUND", compute_bound, state=True),
    Rule("MEMORY-BOUND", memory_bound, state=True),
)


def findings(o: Observation, policy: Policy | None = None) -> list[Finding]:
    """All that holds: faults by the time that mending each gives back, then states; INCONCLUSIVE where nothing does."""
    p = policy or Policy()
    doubt = _doubt(o, p)
    if doubt is not None:
        return [Finding("INCONCLUSIVE", doubt, state=True)]
    found = _spoken(o, p)
    if found and spread(o) > p.spread:
        return _despite_noise(found, o, p)
    return found or [Finding("INCONCLUSIVE", _nothing(o), state=True)]


def spread(o: Observation) -> float:
    """By how much the slowest repeat takes longer than the fastest, as a share; 0 where there is one or none."""
    return max(o.repeats_ms) / min(o.repeats_ms) - 1 if len(o.repeats_ms) > 1 and min(o.repeats_ms) > 0 else 0.0


def _spoken(o: Observation, p: Policy) -> list[Finding]:
    """What the rules say, in order; repeats are not looked at."""
    spoken = [finding for rule in RULES if (finding := rule.look(o, p)) is not None]
    faults = sorted((f for f in spoken if not f.state), key=lambda f: -(f.gives_back_ms or 0.0))
    return [*faults, *(f for f in spoken if f.state)]


def _doubt(o: Observation, p: Policy) -> str | None:
    """Why there is too little to look at; None where there is enough."""
    if not o.batch_ms:
        return "no batch was timed"
    if o.batches < p.few_batches:
        return f"{o.batches} batches were timed, too few for their mean to say anything: at least {p.few_batches} (--limit)"
    return None


def _despite_noise(found: list[Finding], o: Observation, p: Policy) -> list[Finding]:
    """What repeats that lie far apart leave standing of `found`.

    That is what each repeat says by itself, and of faults those whose mending brings more than the repeats differ by. Nothing
    stands where the first finding does not, or where the repeats put different ones first.
    """
    apart, first = spread(o), found[0]
    each = [_spoken(seen, p) for seen in _repeats(o)]
    firsts = list(dict.fromkeys(said[0].verdict if said else "nothing" for said in each))
    doubt = f"the repeats lie {apart:.0%} apart, {min(o.repeats_ms):.1f} to {max(o.repeats_ms):.1f} ms a batch"
    if firsts != [first.verdict]:
        why = f"{doubt}, and what comes first differs between them ({', '.join(firsts)}): a quieter machine would tell"
        return [Finding("INCONCLUSIVE", why, state=True)]

    def beyond(finding: Finding) -> bool:
        return finding.state or (o.batch_ms or 0.0) > (1 + apart) * (finding.predicted_batch_ms or 0.0)

    if not beyond(first):
        gain = (first.gives_back_ms or 0.0) / (first.predicted_batch_ms or 1.0)
        why = f"{doubt}, and mending {first.verdict} would bring {gain:.0%}: a quieter machine would tell"
        return [Finding("INCONCLUSIVE", why, state=True)]
    return [f for f in found if beyond(f) and all(f.verdict in {g.verdict for g in said} for said in each)]


def _repeats(o: Observation) -> list[Observation]:
    """Each repeat as an observation of its own, with its own phases where they were kept."""
    kept: list[Any] = [*o.repeats_phases_ms]
    phases = kept if len(kept) == len(o.repeats_ms) else [{} for _ in o.repeats_ms]
    return [replace(o, batch_ms=ms, **own) for ms, own in zip(o.repeats_ms, phases, strict=True)]


def _nothing(o: Observation) -> str:
    parts = {"tokenizing": o.tokenize_ms, "collation": o.collate_ms, "the device": o.device_ms, "answers": o.postprocess_ms}
    known = ", ".join(f"{ms:.1f} ms of {name}" for name, ms in parts.items() if ms is not None)
    return f"no single thing explains a batch's {o.batch_ms:.1f} ms: {known or 'no phase was measured'}"
