"""Faults planted in a real pipeline on this CPU: the first verdict names the one that was planted, and none without."""

import dataclasses
import functools
import time
from unittest import mock

import numpy as np
import pytest

from bertopt import ladder
from bertopt.batching import choose_edges
from bertopt.diagnose import findings
from bertopt.diagnose.eliminate import observe
from bertopt.ladder import Rung
from bertopt.measure import ceilings, loop
from bertopt.model import open_checkpoint
from bertopt.progress import Lines
from bertopt.run import Runner, Settings
from bertopt.text import Requests
from bertopt.tokenization import load_tokenizer
from bertopt.workspace import Workspace
from tests.models import WORDS

FAULTS = ("TOKENIZE-BOUND", "PADDING-WASTE", "UNDERFILLED", "POSTPROCESS-BOUND", "COLLATE-BOUND")
LENGTH = 128
BASE = Rung("base", "serial, in length buckets: nothing is wrong with it", "fast-tokenizer", {"batching": "bucketed"})


class Slow:
    """A tokenizer that takes a millisecond a row."""

    def __init__(self, real):
        self.real = real

    def encode(self, texts, pairs=None):
        time.sleep(1e-3 * len(texts))
        return self.real.encode(texts, pairs)


class Sleeping(loop.Answers):
    """What is done with the answers of a batch takes longer than computing them."""

    def put(self, batch, logits):
        super().put(batch, logits)
        time.sleep(0.1)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    """Its folder: large enough that computing takes longer than tokenizing."""
    from tests import models

    sizes = {"hidden_size": 192, "num_hidden_layers": 3, "intermediate_size": 768, "max_position_embeddings": LENGTH}
    return models.save("bert", tmp_path_factory.mktemp("mid"), **sizes)


@pytest.fixture(autouse=True)
def quick_ceilings(monkeypatch):
    monkeypatch.setattr(ceilings, "SECONDS", 0.02)
    monkeypatch.setattr(ceilings, "SIDE", {"cpu": 256})
    monkeypatch.setattr(ceilings, "COPY_BYTES", {"cpu": 1 << 20})


def texts(count):
    """Whole words of the tiny vocabulary, a token each; most short, a few long."""
    generator = np.random.default_rng(0)
    lengths = np.clip(generator.lognormal(3.1, 0.5, count).astype(int), 6, LENGTH - 2)
    return Requests([" ".join(generator.choice(WORDS[1:], n)) for n in lengths])


@functools.cache
def examine(folder, count=176, *, batch_size=16, repeats=2, tokenizer="fast", batching="bucketed"):
    checkpoint, requests = open_checkpoint(str(folder)), texts(count)
    fast = load_tokenizer(checkpoint.folder, max_length=LENGTH, model_type=checkpoint.model_type)
    tokens = fast.encode(requests.texts)
    settings = Settings(batch_size, LENGTH, repeats, window=256)
    edges = choose_edges(tokens.lengths, LENGTH, batch_size=batch_size, window=settings.window)
    tokenizers = {"fast": fast, "reference": Slow(fast)}
    rung = dataclasses.replace(BASE, replaces={"tokenizer": tokenizer, "batching": batching})
    runner = Runner(settings, Workspace(checkpoint), requests, tokens, tokenizers, edges, Lines(quiet=True))
    try:
        opened = runner.open(rung, (*ladder.RUNGS, rung), lambda of: None)
        return observe(runner, opened, checkpoint, repeats)
    finally:
        runner.close()


def first(seen):
    """The first verdict. A machine that others use too may make repeats that say nothing; the means still stand."""
    return findings(dataclasses.replace(seen, repeats_ms=[]))[0]


def test_with_nothing_planted_none_of_the_faults_is_found_and_the_phases_add_up(checkpoint):
    seen = examine(checkpoint)
    assert not {f.verdict for f in findings(dataclasses.replace(seen, repeats_ms=[]))} & set(FAULTS)
    assert seen.explained == pytest.approx(1.0, abs=0.05)
    assert seen.probe_cost_fraction < 0.02
    assert seen.ceiling_flop_s is not None
    assert seen.bandwidth_b_s is not None
    assert seen.missing["card"]


def test_a_slow_tokenizer(checkpoint):
    found = first(examine(checkpoint, tokenizer="reference"))
    assert found.verdict == "TOKENIZE-BOUND"
    assert "Rust tokenizer takes" in found.why
    assert found.predicted_batch_ms is not None


def test_everything_padded_to_128(checkpoint):
    found = first(examine(checkpoint, batching="fixed"))
    assert found.verdict == "PADDING-WASTE"
    assert "in length buckets the same rows take" in found.why


def test_batch_1(checkpoint):
    assert first(examine(checkpoint, 70, batch_size=1)).verdict == "UNDERFILLED"


def test_a_sleeping_postprocess(checkpoint):
    with mock.patch.object(loop, "Answers", Sleeping):
        seen = examine.__wrapped__(checkpoint)
    assert first(seen).verdict == "POSTPROCESS-BOUND"
    assert seen.loop_ms["answers"] >= 100
    assert seen.explained == pytest.approx(1.0, abs=0.05)


def test_what_mending_was_predicted_to_bring_comes_true(checkpoint):
    before = examine(checkpoint, tokenizer="reference")
    after = examine(checkpoint)
    promised = first(before).predicted_batch_ms
    assert after.batch_ms == pytest.approx(promised, rel=0.35), "other work on the cores apart"
