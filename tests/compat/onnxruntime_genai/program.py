"""A program for onnxruntime_genai: `python program.py FOLDER` prints what it returns, as JSON.

`python program.py FOLDER > recorded.json` with the real package writes what test_drop_in.py compares weft with.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import onnxruntime_genai as og

PROMPT = "The functions of this module"


def main(folder: str) -> None:
    model = og.Model(folder)
    tokenizer = og.Tokenizer(model)
    ids = tokenizer.encode(PROMPT)

    def start(**options: Any) -> Any:
        params = og.GeneratorParams(model)
        params.set_search_options(**{"max_length": 40, "do_sample": False, **options})
        return og.Generator(model, params)

    def finish(generator: Any) -> list[int]:
        while not generator.is_done():
            generator.generate_next_token()
        return generator.get_sequence(0).tolist()

    def end_logits() -> Any:
        logits = np.full((1, 1, len(start_logits)), -50, np.float32)
        logits[..., tokenizer.eos_token_ids[0]] = 10
        return logits

    results: dict[str, Any] = {}

    # The loop of the package's samples.
    stream = tokenizer.create_stream()
    generator = start(max_length=len(ids) + 200)
    generator.append_tokens(ids)
    first = generator.get_logits()
    start_logits = first.ravel()
    results["shapes"] = [list(first.shape), str(first.dtype), list(generator.get_output("logits").shape)]
    tokens, pieces = [], []
    while not generator.is_done():
        generator.generate_next_token()
        token = generator.get_next_tokens()[0]
        tokens.append(int(token))
        pieces.append(stream.decode(token))
    results["loop"] = [tokens, "".join(pieces), generator.token_count(), generator.get_sequence(0).tolist()]

    results["type"] = model.type
    results["tokens"] = [ids.tolist(), str(ids.dtype), tokenizer.decode(ids), tokenizer.eos_token_ids.tolist()]
    batch = tokenizer.encode_batch(["The list", "Return the value of the"])
    results["encode_batch"] = [batch.as_numpy().tolist(), batch.shape(), tokenizer.decode_batch(batch)]
    results["to_token_id"] = [tokenizer.to_token_id("no such token"), tokenizer.bos_token_id, tokenizer.pad_token_id]
    template = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"
    messages = json.dumps([{"role": "user", "content": "Hi"}])
    results["chat"] = tokenizer.apply_chat_template(messages, template_str=template)
    results["options"] = og.GeneratorParams(model).get_search_options()

    generator = start(batch_size=2)
    generator.append_tokens(batch)
    before = [generator.get_sequence(0).tolist(), list(generator.get_logits().shape)]
    finish(generator)
    results["batch"] = [before, generator.get_sequence(0).tolist(), generator.get_sequence(1).tolist()]

    generator = start()
    generator.append_tokens(ids[:2])
    generator.append_tokens(ids[2:])
    results["append in parts"] = finish(generator)
    generator = start()
    generator.append_tokens(ids)
    generator.generate_next_token()
    generator.rewind_to(2)
    after = [generator.token_count(), generator.is_done()]
    generator.append_tokens(ids[2:])
    results["rewind"] = [after, finish(generator)]

    generator = start()
    generator.append_tokens(ids)
    generator.set_logits(end_logits())
    generator.generate_next_token()
    end = [generator.is_done(), generator.get_next_tokens().tolist(), generator.get_sequence(0).tolist()]
    generator.append_tokens(np.array([20, 21]))
    results["end token"] = [end, generator.is_done(), finish(generator)]
    generator = start(min_length=30)
    generator.append_tokens(ids)
    generator.set_logits(end_logits())
    generator.generate_next_token()
    results["min_length"] = generator.get_next_tokens().tolist()

    generator = start(repetition_penalty=1.3)
    generator.append_tokens(ids)
    results["repetition_penalty"] = finish(generator)
    generator = start(do_sample=True, top_k=1)
    generator.append_tokens(ids)
    results["top_k 1"] = finish(generator)
    generator = start(num_beams=3, num_return_sequences=2, max_length=20)
    generator.append_tokens(ids)
    results["beams"] = [finish(generator), generator.get_sequence(1).tolist()]

    config = og.Config(folder)
    config.clear_providers()
    config.overlay('{"search": {"max_length": 33, "top_k": 7}}')
    search = og.GeneratorParams(og.Model(config)).get_search_options()
    results["overlay"] = [search["max_length"], search["top_k"]]

    full = start(max_length=len(ids))
    full.append_tokens(ids)
    failures: dict[str, Callable[[], Any]] = {
        "no tokens": start().generate_next_token,
        "empty": lambda: start().append_tokens(np.array([], np.int32)),
        "too long": lambda: start().append_tokens(np.ones(50, np.int32)),
        "full": full.generate_next_token,
        "context": lambda: start(max_length=10**6),
        "unknown option": lambda: og.GeneratorParams(model).set_search_options(foo=1),
        "text option": lambda: og.GeneratorParams(model).set_search_options(top_k="3"),
        "rewind": lambda: start().rewind_to(9),
        "top_p": lambda: start(top_p=2.0, do_sample=True),
        "sequences": lambda: start(num_return_sequences=2),
        "set_logits": lambda: full.set_logits(np.zeros(3, np.float32)),
    }
    results["errors"] = {name: describe_error(call) for name, call in failures.items()}
    print(json.dumps(results))


def describe_error(call: Callable[[], Any]) -> str:
    try:
        call()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "no error"


if __name__ == "__main__":
    main(sys.argv[1])
