"""One server for all tests of OpenAI's protocol, with the demo model in several forms and embedding models."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import openai
import pytest
from server.openai import templates
from server.openai.folders import write_chat_folder, write_embedding_folder

import weft
import weft.server

NORMALIZE = [
    {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"},
    {"idx": 1, "name": "1", "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"},
    {"idx": 2, "name": "2", "path": "2_Normalize", "type": "sentence_transformers.models.Normalize"},
]


@dataclass(frozen=True)
class Served:
    """A server, its models and a client."""

    url: str
    generators: dict[str, weft.Generator]
    folders: dict[str, Path]
    client: openai.OpenAI

    def post(self, path: str, **content: Any) -> Any:
        return self.client.post(f"/{path}", body=content, cast_to=object)


@pytest.fixture(scope="session")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    root = tmp_path_factory.mktemp("openai")
    chats = {**templates.FAMILIES, "thinking": templates.THINKING, "reasoner": templates.REASONER}
    renamed = {"special": {"<|user|>": "[CALL]"}, "reasoner": {"<|user|>": "</think>"}}
    chats["special"] = templates.HERMES.replace("<tool_call>", "[CALL]").replace("<|user|>", "<|system|>")
    generators = {"demo": weft.Generator(max_batch=8)}
    for name, template in chats.items():
        folder = write_chat_folder(root / name, template, renamed.get(name))
        generators[name] = weft.Generator(folder, max_batch=4)
    folders = {
        "mean": write_embedding_folder(root / "mean"),
        "cls": write_embedding_folder(
            root / "cls",
            modules__json=NORMALIZE[:2],
            sentence_bert_config__json={"max_seq_length": 12},
            **{"1_Pooling___config__json": {"pooling_mode_cls_token": True, "pooling_mode_max_tokens": True}},
        ),
        "pooled": write_embedding_folder(
            root / "pooled",
            "sentence_embedding",
            modules__json=NORMALIZE,
            config_sentence_transformers__json={"prompts": {"query": "fox "}, "default_prompt_name": "query"},
        ),
    }
    models: dict[str, Any] = {
        **generators,
        **folders,
        "plain": write_embedding_folder(root / "plain") / "onnx/model.onnx",
    }
    with weft.server.start(models, grpc=None) as server:
        client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=120)
        yield Served(server.url, generators, folders, client)
        client.close()
    for generator in generators.values():
        generator.close()
