"""Fine-tune a BERT classifier on a labelled file, and see where its steps spend their time.

    python examples/finetune_agnews.py --model bert-base-uncased --data train.jsonl --steps 400 --warmup 100 --save model/
    bertopt ladder --model model/ --data eval.jsonl

AdamW, a linear schedule, mixed precision. The checkpoint that --save writes is one that the ladder and the gate open. With
--random-weights only the model's configuration is read: the speed is the same, and no weights are needed.
"""

from __future__ import annotations

import argparse
import random
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader, Sampler

import bertopt
from bertopt.measure.arithmetic import encoder_flops
from bertopt.model import Checkpoint, open_checkpoint
from bertopt.text import Requests, read
from bertopt.tokenization import FastTokenizer, load_tokenizer

TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "vocab.txt")
DTYPES = {"fp16": torch.float16, "bf16": torch.bfloat16}


class Collate:
    """Rows (text, class) -> tensors: tokenized, and padded to the longest of the batch or to one length."""

    def __init__(self, tokenizer: FastTokenizer, length: int | None, uses_type_ids: bool) -> None:
        self.tokenizer, self.length, self.uses_type_ids = tokenizer, length, uses_type_ids

    def __call__(self, rows: list[tuple[str, int]]) -> dict[str, torch.Tensor]:
        tokens = self.tokenizer.encode([text for text, _ in rows])
        length = self.length or int(tokens.lengths.max())
        ids = torch.full((len(rows), length), self.tokenizer.pad_id, dtype=torch.long)
        mask = torch.zeros_like(ids)
        for row in range(len(rows)):
            found = torch.from_numpy(tokens.row(row).astype("int64"))
            ids[row, : len(found)] = found
            mask[row, : len(found)] = 1
        batch = {"input_ids": ids, "attention_mask": mask, "labels": torch.tensor([label for _, label in rows])}
        return batch | ({"token_type_ids": torch.zeros_like(ids)} if self.uses_type_ids else {})


class Shuffled(Sampler[int]):
    """As many positions as the run takes, epoch after epoch, each in an order of its own."""

    def __init__(self, rows: int, wanted: int, seed: int) -> None:
        self.rows, self.wanted, self.random = rows, wanted, random.Random(seed)

    def __len__(self) -> int:
        return self.wanted

    def __iter__(self) -> Iterator[int]:
        left = self.wanted
        while left > 0:
            order = self.random.sample(range(self.rows), self.rows)[:left]
            yield from order
            left -= len(order)


def build(checkpoint: Checkpoint, classes: list[str], seed: int) -> Any:
    """The classifier: with the checkpoint's weights under a new head, or all in random weights."""
    from transformers import AutoConfig, AutoModelForSequenceClassification

    torch.manual_seed(seed)
    config = checkpoint.config
    config.num_labels = len(classes)
    config.id2label, config.label2id = dict(enumerate(classes)), {name: i for i, name in enumerate(classes)}
    if checkpoint.weights == "random":
        return AutoModelForSequenceClassification.from_config(config)
    config = AutoConfig.from_pretrained(checkpoint.folder, id2label=config.id2label, label2id=config.label2id)
    return AutoModelForSequenceClassification.from_pretrained(
        checkpoint.folder, config=config, ignore_mismatched_sizes=True, dtype=torch.float32
    )


def schedule(step: int, warmup: int, steps: int) -> float:
    """Up over the first tenth at most, then down to nothing: the linear schedule of BERT's own fine-tuning."""
    rise = max(1, min(warmup, steps // 10))
    return step / rise if step < rise else max(0.0, (steps - step) / max(1, steps - rise))


def save(model: Any, checkpoint: Checkpoint, folder: Path) -> None:
    """A checkpoint that `bertopt ladder --model` and `bertopt gate` open."""
    model.config.architectures = [type(model).__name__]
    model.float().save_pretrained(folder)
    for name in TOKENIZER_FILES:
        if (checkpoint.folder / name).exists():
            shutil.copyfile(checkpoint.folder / name, folder / name)


def train(args: argparse.Namespace, requests: Requests) -> bertopt.steps.Steps:  # type: ignore[name-defined]
    checkpoint = open_checkpoint(args.model, random_weights=args.random_weights)
    tokenizer = load_tokenizer(checkpoint.folder, max_length=args.seq, model_type=checkpoint.model_type)
    labels = requests.labels or []
    classes = sorted(set(labels))
    rows = [(text, classes.index(label)) for text, label in zip(requests.texts, labels, strict=True)]
    cuda = args.device == "cuda"
    total = args.warmup + args.steps
    loader = DataLoader(
        rows,  # type: ignore[arg-type]
        args.bs,
        sampler=Shuffled(len(rows), total * args.bs, args.seed),
        collate_fn=Collate(tokenizer, args.seq if args.pad == "max" else None, checkpoint.uses_type_ids),
        num_workers=args.workers,
        multiprocessing_context="spawn" if args.workers else None,  # the parent has a CUDA context, which no fork survives
        pin_memory=cuda,
    )
    model = build(checkpoint, classes, args.seed).to(args.device).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, weight_decay=0.01, fused=cuda)
    rate = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: schedule(step, args.warmup, total))
    scaler = torch.amp.GradScaler(args.device, enabled=args.precision == "fp16")
    flops = 3 * encoder_flops(  # backward is twice forward
        args.bs * args.seq, args.bs * args.seq**2, checkpoint.hidden, checkpoint.intermediate, checkpoint.layers
    )
    loss_sum = torch.zeros((), device=args.device)
    about = {"model": checkpoint.name, "weights": checkpoint.weights, "optimizer": "AdamW", "pad": args.pad}
    with bertopt.record_steps(
        warmup=args.warmup,
        device=args.device,
        precision=args.precision,
        flops_per_step=flops if args.pad == "max" else None,
        about=about,
        out=args.out,
    ) as steps:
        for batch in steps.over(loader):
            mask = batch["attention_mask"]
            with steps.phase("copy"):
                batch = {name: tensor.to(args.device, non_blocking=True) for name, tensor in batch.items()}
            dtype = DTYPES.get(args.precision)
            with steps.phase("forward"), torch.autocast(args.device, dtype=dtype, enabled=dtype is not None):
                loss = model(**batch).loss
            with steps.phase("backward"):
                scaler.scale(loss).backward()
            with steps.phase("optimizer"):
                scaler.step(optimizer)
                scaler.update()
                optimizer.zero_grad(set_to_none=True)
                rate.step()
                loss_sum += loss.detach()  # read once, after the loop: reading it waits for the device
            steps.done(mask)
    print(f"\nmean loss {loss_sum.item() / total:.4f} over {total} steps, {len(classes)} classes")
    if args.save:
        save(model, checkpoint, args.save)
        print(f"checkpoint  {args.save}")
    return steps


def options(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="bert-base-uncased", help="a folder or a hub name")
    parser.add_argument("--data", type=Path, required=True, help="texts with labels")
    parser.add_argument("--bs", type=int, default=32)
    parser.add_argument("--seq", type=int, default=128)
    parser.add_argument("--steps", type=int, default=300, help="measured ones")
    parser.add_argument("--warmup", type=int, default=20, help="steps before them, left out of the figures")
    parser.add_argument("--lr", type=float, default=2e-5)
    parser.add_argument("--precision", choices=["fp32", "fp16", "bf16"], help="default: fp16 on a card, else fp32")
    parser.add_argument("--pad", choices=["longest", "max"], default="longest")
    parser.add_argument("--workers", type=int, default=0, help="processes of the loader")
    parser.add_argument("--limit", type=int)
    parser.add_argument("--random-weights", action="store_true", help="speed only: the configuration without its weights")
    parser.add_argument("--device", choices=["cpu", "cuda"])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, help="the record's folder")
    parser.add_argument("--save", type=Path, help="where the checkpoint goes")
    args = parser.parse_args(arguments)
    args.device = args.device or ("cuda" if torch.cuda.is_available() else "cpu")
    args.precision = args.precision or ("fp16" if args.device == "cuda" else "fp32")
    return args


def main(arguments: list[str] | None = None) -> Any:
    args = options(arguments)
    requests = read(args.data, limit=args.limit)
    if requests.labels is None:
        raise SystemExit(f"{args.data} has no labels to learn")
    return train(args, requests)


if __name__ == "__main__":
    main()
