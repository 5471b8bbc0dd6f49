"""The peer of peers_serve.py: sentence-transformers behind the server that its users write. MODEL PORT MAX-LENGTH"""

from __future__ import annotations

import asyncio
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import uvicorn
from sentence_transformers import SentenceTransformer
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

model = SentenceTransformer(sys.argv[1], device="cpu")
model.max_seq_length = int(sys.argv[3])
one = ThreadPoolExecutor(1)  # the model takes all cores; more threads only fight for them


def encode(text: str) -> Any:
    return model.encode([text], show_progress_bar=False).tolist()


async def embed(request: Request) -> JSONResponse:
    text = (await request.json())["text"]
    return JSONResponse({"embeddings": await asyncio.get_running_loop().run_in_executor(one, encode, text)})


async def ready(request: Request) -> JSONResponse:
    return JSONResponse({"status": "ready"})


routes = [Route("/embed", embed, methods=["POST"]), Route("/readyz", ready)]
uvicorn.run(Starlette(routes=routes), host="127.0.0.1", port=int(sys.argv[2]), log_level="warning", access_log=False)
