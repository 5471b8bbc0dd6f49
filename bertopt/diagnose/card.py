"""The card: Verdict, Why, Next, and what else holds."""

from __future__ import annotations

from bertopt.records_diagnosis import Diagnosis, Finding, Observation

STAGES = ("input", "collate", "copy", "launch", "device", "forward", "backward", "optimizer", "answers")


def lines(record: Diagnosis) -> list[str]:
    """The card as plain lines. The commands stand on lines of their own, to be copied."""
    seen, first = record.observation, record.first
    shown = [*_about(record), ""]
    shown += [f"Verdict  {verdict(record)}", f"Why      {first.why}"]
    shown += [f"Next     {first.next}" if first.next else "Next     nothing that is known here"]
    if (promise := gain_in_words(first, seen)) is not None:
        shown.append(f"         {promise}")
    rest = record.findings[1:]
    if rest:
        shown += ["", "It also holds:"]
        for finding in rest:
            gain = gain_in_words(finding, seen)
            shown += [f"  {finding.verdict}: {finding.why}", f"    {finding.next}" + (f"  ({gain})" if gain else "")]
    if record.after is not None:
        shown += ["", f"After {record.after.run}: {record.after.sentence}"]
    shown += ["", *_loop(seen)]
    shown += _power(seen)
    return shown


def gain_in_words(finding: Finding, o: Observation) -> str | None:
    """What mending brings, as it is predicted; None where nothing can be said."""
    if not o.batch_ms or finding.predicted_batch_ms is None or not o.throughput_seq_s:
        return None
    factor = finding.gain(o.batch_ms) or 1.0
    return f"predicted {factor:.2f}x: {o.throughput_seq_s:,.0f} -> {o.throughput_seq_s * factor:,.0f} seq/s"


def verdict(record: Diagnosis) -> str:
    """The first finding, and the states beside it that belong to it: a busy device may compute nothing but padding."""
    bound = ("COMPUTE-BOUND", "MEMORY-BOUND", "POWER-LIMITED", "TOKENIZE-BOUND")
    names = [f.verdict for f in record.findings[1:] if f.state and f.verdict in bound]
    return record.first.verdict + (f", and {', '.join(names)}" if names and not record.first.state else "")


def _about(record: Diagnosis) -> list[str]:
    o = record.observation
    what = record.model.name if record.model else "training loop"
    data = f", {record.data.requests:,} requests of {record.data.name}" if record.data else ""
    rate = "" if o.throughput_seq_s is None else f", {o.throughput_seq_s:,.1f} seq/s"
    choices = ", ".join(value for key, value in record.pipeline.items() if key != "rung")
    how = f" ({record.pipeline['rung']}: {choices})" if record.pipeline else ""
    return [f"{what}{data}, batch {record.batch_size} x {record.sequence_length} on {record.device}{how}{rate}"]


def _loop(o: Observation) -> list[str]:
    """Where a batch's time goes, phase by phase, and how much of it the phases hold."""
    if not o.loop_ms or not o.batch_ms:
        return []
    parts = [f"{name} {ms:.2f} ms ({ms / o.batch_ms:.0%})" for name, ms in o.loop_ms.items() if ms > 0]
    held = "" if o.explained is None else f"; together {o.explained:.1%} of {o.batch_ms:.2f} ms"
    shown = ["Loop     " + ", ".join(parts) + held]
    if o.probe_cost_fraction is not None:
        shown.append(f"Probes   cost {o.probe_cost_fraction:.2%} of the time")
    return shown


def _power(o: Observation) -> list[str]:
    card = o.card
    if card is None:
        return []
    known = [
        f"SM active {card.sm_active:.1%}" if card.sm_active is not None else "",
        f"tensor cores {card.tensor_active:.1%}" if card.tensor_active is not None else "",
        f"memory {card.dram_active:.1%}" if card.dram_active is not None else "",
        f"{card.power_w:.0f} W" if card.power_w is not None else "",
        f"{1000 * card.power_w / o.throughput_seq_s:,.1f} J per 1,000 sequences" if card.power_w and o.throughput_seq_s else "",
        f"{card.sm_clock_mhz:.0f} of {card.max_sm_clock_mhz:.0f} MHz" if card.sm_clock_mhz and card.max_sm_clock_mhz else "",
        "held back by " + ", ".join(f"{n} ({s:.0%} of samples)" for n, s in card.throttled.items()) if card.throttled else "",
    ]
    shown = ["Card     " + ", ".join(filter(None, known)) + f" ({card.samples} samples)"] if any(known) else []
    return shown + [f"         {reason}" for reason in card.reasons]
