"""Workers ahead of compute: order, bounds, and ends without a hang."""

import itertools
import os
import signal
import threading
import time

import numpy as np
import pytest

from bertopt import feed
from bertopt.errors import WorkerError
from bertopt.text import Requests
from bertopt.tokenization import Tokens
from tests.fakes import WordTokenizer, requests, threads_named


class Killer(WordTokenizer):
    """Kills the process that tokenizes it."""

    def encode(self, texts, pairs=None):
        os.kill(os.getpid(), signal.SIGKILL)
        raise AssertionError


def ahead(asked, tokenizer, count, *, processes=False, **how):
    with feed.Workers(tokenizer, count, processes=processes) as workers:
        yield from workers.ahead(asked, **how)


def ids_of(chunks):
    return Tokens.concat([c.tokens for c in chunks]).ids


@pytest.mark.parametrize(("workers", "depth", "rows"), itertools.product([1, 2, 8], [None, 1, 4], [1, 7, 500]))
def test_every_combination_gives_the_serial_result(workers, depth, rows):
    asked = requests(35)
    ours = ids_of(ahead(asked, WordTokenizer(0.2), workers, depth=depth, rows=rows))
    assert np.array_equal(ours, ids_of(feed.serial(asked, WordTokenizer(), 8)))


def test_processes_give_the_same_and_are_never_forked():
    asked = requests(50)
    ours = ids_of(ahead(asked, WordTokenizer(), 2, rows=8, processes=True))
    assert np.array_equal(ours, ids_of(feed.serial(asked, WordTokenizer(), 8)))


def test_chunks_start_small_and_double_a_round():
    sizes = [len(c.tokens) for c in ahead(requests(60), WordTokenizer(), 2, rows=16, first_rows=4)]
    assert sizes == [4, 4, 8, 8, 16, 16, 4]


def test_a_pool_serves_pass_after_pass():
    asked = requests(40)
    with feed.Workers(WordTokenizer(), 2) as workers:
        passes = [ids_of(workers.ahead(asked, rows=8)) for _ in range(3)]
    assert all(np.array_equal(p, passes[0]) for p in passes)


@pytest.mark.parametrize("processes", [False, True])
def test_a_worker_that_fails_ends_the_run_with_its_own_words(processes):
    asked = requests(100)
    broken = WordTokenizer(fails_on=asked.texts[60])
    with pytest.raises(WorkerError, match="cannot tokenize"):
        list(ahead(asked, broken, 2, rows=10, processes=processes))


def test_a_worker_that_is_killed_is_an_error_and_no_hang():
    start = time.perf_counter()
    with pytest.raises(WorkerError, match="killed"):
        list(ahead(requests(100), Killer(), 2, rows=10, processes=True))
    assert time.perf_counter() - start < 20


def test_leaving_early_leaves_no_worker_behind():
    chunks = ahead(requests(400), WordTokenizer(2), 3, rows=2)
    next(chunks)
    chunks.close()
    deadline = time.perf_counter() + 5
    while threads_named("tokenize") and time.perf_counter() < deadline:
        time.sleep(0.02)
    assert not threads_named("tokenize")


def test_no_more_chunks_than_the_depth_are_ahead():
    started = []

    class Counting(WordTokenizer):
        def encode(self, texts, pairs=None):
            started.append(threading.get_ident())
            return super().encode(texts, pairs)

    chunks = ahead(requests(100), Counting(), 2, depth=3, rows=1)
    for taken in range(1, 20):
        next(chunks)
        time.sleep(0.001)
        assert len(started) <= taken + 3


def test_every_process_has_started_when_the_pool_is_made():
    with feed.Workers(WordTokenizer(), 3, processes=True) as workers:
        assert len(workers.pool.pids) == 3
        assert sum(len(chunk.tokens) for chunk in workers.ahead(requests(40), rows=7)) == 40


def test_texts_that_no_pipe_holds_do_not_block():
    asked = Requests([f"word{n} " * 30_000 for n in range(12)], name="long")  # 2.5 MB to the one worker, and as much back
    assert sum(len(c.tokens) for c in ahead(asked, WordTokenizer(), 1, rows=1, depth=12, processes=True)) == 12


def test_a_pass_that_was_left_does_not_mix_into_the_next():
    asked = requests(60)
    with feed.Workers(WordTokenizer(0.2), 2, processes=True) as workers:
        for taken in range(4):
            chunks = workers.ahead(asked, rows=4, depth=6)
            for _ in range(taken):
                next(chunks)
            chunks.close()
        ours = ids_of(workers.ahead(asked, rows=8))
    assert np.array_equal(ours, ids_of(feed.serial(asked, WordTokenizer(), 8)))


def test_no_requests_are_no_chunks():
    assert list(ahead(requests(0), WordTokenizer(), 2)) == []


def test_the_rust_tokenizers_own_threads_are_off_beside_workers_and_put_back(monkeypatch):
    monkeypatch.setenv("TOKENIZERS_PARALLELISM", "kept")
    with feed.rust_threads(False):
        assert os.environ["TOKENIZERS_PARALLELISM"] == "false"
    assert os.environ["TOKENIZERS_PARALLELISM"] == "kept"
