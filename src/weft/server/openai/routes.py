"""The endpoints of OpenAI's protocol as routes."""

from __future__ import annotations

from weft.server.http import Route
from weft.server.openai.chat_completions import ChatCompletions
from weft.server.openai.chat_format import ChatFormats
from weft.server.openai.completions import Completions
from weft.server.openai.embeddings import Embeddings
from weft.server.openai.models import ModelList, TextModels
from weft.server.openai.start import AnswerLimits


def openai_routes(models: TextModels, max_waiting: int, timeout: float | None = None) -> list[Route]:
    """Return the routes.

    max_waiting: the most answers that may wait for a generator. timeout: seconds for an answer; None for no limit.
    """
    limits = AnswerLimits(max_waiting, timeout)
    model_list, completions = ModelList(models), Completions(models, limits)
    chats = ChatCompletions(models, ChatFormats(), limits)
    return [
        Route("GET", "/v1/models", model_list.list, "openai", "List the models of text"),
        Route("GET", "/v1/models/{model}", model_list.get, "openai", "Describe a model of text"),
        Route("POST", "/v1/chat/completions", chats.create, "openai", "Answer the messages of a chat"),
        Route("POST", "/v1/completions", completions.create, "openai", "Continue texts"),
        Route("POST", "/v1/embeddings", Embeddings(models).create, "openai", "Compute embeddings of texts"),
    ]
