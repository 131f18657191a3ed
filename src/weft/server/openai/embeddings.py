"""The endpoint of embeddings."""

from __future__ import annotations

import asyncio
import base64
from functools import partial
from typing import Any

import numpy as np

from weft.server.embedder import TextTooLongError, normalize
from weft.server.http import HttpError, Request, Response, json_response
from weft.server.openai.errors import CONTEXT_EXCEEDED, convert_error
from weft.server.openai.fields import Fields, read_texts
from weft.server.openai.models import TextModels

MOST_INPUTS = 2048
FLOAT, BASE64 = "float", "base64"


class Embeddings:
    """Computes embeddings."""

    def __init__(self, models: TextModels) -> None:
        self._models = models

    async def create(self, request: Request) -> Response:
        """Compute the embeddings of texts."""
        fields = Fields(request.json_object())
        name = fields.required_text("model")
        embedder = self._models.embedder(name)
        inputs = read_texts(fields, "input", MOST_INPUTS)
        encoding = fields.choice("encoding_format", (FLOAT, BASE64)) or FLOAT
        dimensions = fields.integer("dimensions", 1, 1 << 31)
        end_request = self._models.begin_request(name)
        counts: list[int] = []
        try:
            matrix, counts = await embedder.embed(partial(self._models.run_embedder, name), inputs)
        except TextTooLongError as error:
            raise HttpError(400, str(error), parameter="input", code=CONTEXT_EXCEEDED) from None
        except Exception as error:
            raise convert_error(error, "input") from error
        finally:
            end_request(sum(counts), 0)
        if dimensions is not None and dimensions > matrix.shape[1]:
            problem = f"dimensions is {dimensions:,}, and embeddings of this model have {matrix.shape[1]:,}"
            raise fields.error("dimensions", problem)
        render = partial(_render, name, matrix, encoding, dimensions, sum(counts))
        return await asyncio.get_running_loop().run_in_executor(None, render)


def _render(name: str, matrix: np.ndarray[Any, Any], encoding: str, dimensions: int | None, tokens: int) -> Response:
    """Return the response, whose JSON can be long."""
    if dimensions is not None and dimensions < matrix.shape[1]:
        matrix = np.stack([normalize(row[:dimensions]) for row in matrix])
    matrix = matrix.astype("<f4")
    data = [
        {
            "object": "embedding",
            "index": index,
            "embedding": base64.b64encode(row.tobytes()).decode() if encoding == BASE64 else row.tolist(),
        }
        for index, row in enumerate(matrix)
    ]
    usage = {"prompt_tokens": tokens, "total_tokens": tokens}
    return json_response({"object": "list", "data": data, "model": name, "usage": usage})
