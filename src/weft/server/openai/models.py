"""The models that a server offers, and the endpoints that list them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from weft.server.http import HttpError, Request, Response, json_response

if TYPE_CHECKING:
    from weft.generation.generator import Generator
    from weft.server.embedder import Embedder

EndRequest = Callable[[int, int], None]  # takes the number of tokens in prompts and answers, and is called once


@dataclass(frozen=True, slots=True)
class TextModelInfo:
    """What a list of models says about one.

    kind: "generator" or "embedder". created: seconds since 1970.
    """

    name: str
    kind: str
    created: int = 0


class TextModels(Protocol):
    """Models by name. Both lookups raise an HttpError: 404 for an unknown name, 400 for a model of another kind."""

    def generator(self, name: str) -> Generator:
        """Return a language model."""
        ...

    def embedder(self, name: str) -> Embedder:
        """Return an embedding model."""
        ...

    async def run_embedder(self, name: str, arrays: Mapping[str, Any]) -> Mapping[str, Any]:
        """Run an embedding model, together with other requests of the same shapes."""
        ...

    def begin_request(self, name: str) -> EndRequest:
        """Count a request, so that its model is not closed before it ends."""
        ...

    def text_models(self) -> Sequence[TextModelInfo]:
        """List the models."""
        ...


def unknown_model_error(name: str) -> HttpError:
    """Make the error for a model that does not exist."""
    return HttpError(404, f"there is no model {name!r}", code="model_not_found", parameter="model")


def model_kind_error(name: str, kind: str) -> HttpError:
    """Make the error for a request to a model of another kind: its kind is "generator", "embedder" or "model"."""
    uses = {
        "generator": "generates text: use /v1/chat/completions or /v1/completions",
        "embedder": "makes embeddings: use /v1/embeddings",
    }
    use = uses.get(kind, "is no language model: use the Open Inference Protocol, /v2/models/…/infer")
    return HttpError(400, f"the model {name!r} {use}", code="model_kind_mismatch", parameter="model")


class ModelList:
    """The endpoints that list models."""

    def __init__(self, models: TextModels) -> None:
        self._models = models

    async def list(self, request: Request) -> Response:  # noqa: ARG002
        """List the models."""
        return json_response({"object": "list", "data": [_describe(info) for info in self._models.text_models()]})

    async def get(self, request: Request, model: str) -> Response:  # noqa: ARG002
        """Describe one model."""
        for info in self._models.text_models():
            if info.name == model:
                return json_response(_describe(info))
        raise unknown_model_error(model)


def _describe(info: TextModelInfo) -> dict[str, Any]:
    return {"id": info.name, "object": "model", "created": info.created, "owned_by": "weft"}
