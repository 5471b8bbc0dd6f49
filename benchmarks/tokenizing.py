"""Rows per second of the tokenizers, and where a row's time goes.

    python benchmarks/tokenizing.py --model FOLDER --data FILE.jsonl           the naive one, and the Rust one by threads
    python benchmarks/tokenizing.py --model FOLDER --data FILE.jsonl --stages  inside and outside the Rust call
    python benchmarks/tokenizing.py --conversions                              ways from Rust's results to int32 arrays

Best of several tries: other work on the machine only ever adds time. Microseconds are of this thread's processor time.
Without --model and --data, the demo's.
"""

from __future__ import annotations

import argparse
import os
import time
from array import array
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from bertopt import demo
from bertopt.text import read
from bertopt.tokenization import load_reference_tokenizer, load_tokenizer

SLOW_ROWS = 500


def best(work: Callable[[], Any], tries: int, clock: Callable[[], float] = time.perf_counter) -> float:
    seconds = []
    for _ in range(tries):
        start = clock()
        work()
        seconds.append(clock() - start)
    return min(seconds)


def tokenizers(fast: Any, reference: Any, texts: list[str], rows: int, tries: int) -> None:
    few = texts[:SLOW_ROWS]
    print(f"{reference.description:45} {len(few) / best(lambda: reference.encode(few), tries):9.0f} rows/s")
    os.environ["TOKENIZERS_PARALLELISM"] = "true"
    chunks = [texts[start : start + rows] for start in range(0, len(texts), rows)]
    seconds = best(lambda: [fast.encode(chunk) for chunk in chunks], tries)
    print(f"{'one caller, the Rust library on all cores':45} {len(texts) / seconds:9.0f} rows/s")
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    for threads in (1, 2, 4, 16):
        with ThreadPoolExecutor(threads) as pool:
            seconds = best(lambda pool=pool: list(pool.map(fast.encode, chunks)), tries)
        print(f"{f'{threads} threads of ours, chunks of {rows} rows':45} {len(texts) / seconds:9.0f} rows/s")


def stages(fast: Any, texts: list[str], rows: int, tries: int) -> None:
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    chunks = [texts[start : start + rows] for start in range(0, len(texts), rows)]
    rust = best(lambda: [fast.rust.encode_batch_fast(chunk) for chunk in chunks], tries, time.thread_time)
    whole = best(lambda: [fast.encode(chunk) for chunk in chunks], tries, time.thread_time)
    results = [fast.rust.encode_batch_fast(chunk) for chunk in chunks]
    lists = best(lambda: [[result.ids for result in chunk] for chunk in results], tries, time.thread_time)
    for name, seconds in (("Rust call", rust), ("FastTokenizer.encode", whole), (".ids of the results alone", lists)):
        print(f"{name:45} {seconds / len(texts) * 1e6:9.2f} us a row")


def by_extending(results: list[Any]) -> Any:
    ids: list[int] = []
    for result in results:
        ids += result.ids
    return np.array(ids, np.int32)


CONVERSIONS: dict[str, Callable[[list[Any]], Any]] = {
    "np.fromiter over the chained lists": lambda results: np.fromiter(chain.from_iterable([r.ids for r in results]), np.int32),
    "np.array of one extended list": by_extending,
    "array('i') of the chained lists": lambda results: array("i", chain.from_iterable([r.ids for r in results])),
    "np.array for each row, concatenated": lambda results: np.concatenate([np.array(r.ids, np.int32) for r in results]),
}


def conversions(fast: Any, texts: list[str], rows: int, tries: int) -> None:
    results = [fast.rust.encode_batch_fast(texts[start : start + rows]) for start in range(0, len(texts), rows)]
    for name, convert in CONVERSIONS.items():
        seconds = best(lambda convert=convert: [convert(chunk) for chunk in results], 4 * tries, time.thread_time)
        print(f"{name:45} {seconds / len(texts) * 1e6:9.2f} us a row")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--seq", type=int, default=128)
    parser.add_argument("--rows", type=int, default=128, help="rows of one call")
    parser.add_argument("--limit", type=int, default=4096)
    parser.add_argument("--tries", type=int, default=5)
    parser.add_argument("--stages", action="store_true")
    parser.add_argument("--conversions", action="store_true")
    wanted = parser.parse_args()
    folder = wanted.model or demo.folder()
    texts = (read(wanted.data) if wanted.data else demo.texts()).texts[: wanted.limit]
    fast = load_tokenizer(folder, max_length=wanted.seq)
    lengths = fast.encode(texts).lengths
    print(f"{len(texts)} texts, {lengths.mean():.1f} tokens a row on average, {os.cpu_count()} cores")
    if wanted.stages:
        stages(fast, texts, wanted.rows, wanted.tries)
    elif wanted.conversions:
        conversions(fast, texts, wanted.rows, wanted.tries)
    else:
        reference = load_reference_tokenizer(folder, max_length=wanted.seq, model_type="bert")
        tokenizers(fast, reference, texts, wanted.rows, wanted.tries)


if __name__ == "__main__":
    main()
