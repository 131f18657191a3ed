"""Answer questions with a language model, all of them at once, and say how certain each answer is.

    python examples/answer_questions.py --model FOLDER --in questions.txt

FOLDER is a chat model, such as Qwen2.5-Instruct, exported by onnxruntime-genai or optimum (docs/guides/generate-text.md
says how). Without it, the small model that comes with weft answers: it has read the docstrings of Python and nothing
else. `--schema FILE` makes every answer a JSON record of that schema, for instance to extract facts from texts:

    {"type": "object", "properties": {"city": {"type": "string"}, "year": {"type": "integer"}}, "required": ["city"]}

Needs the extra `text` of weft.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import weft

SAMPLE = """\
What does math.sqrt do?
What does str.upper do?
What does str.strip do?
What does os.path.join do?
"""


def answer_questions(
    generator: weft.Generator, questions: Sequence[str], system: str | None = None, **options: Any
) -> Iterator[weft.Answer]:
    """Yield the answers in the order of the questions, which run as one batch."""
    instructions = [{"role": "system", "content": system}] if system else []
    streams = [
        generator.stream([*instructions, {"role": "user", "content": question}], logprobs=0, **options)
        for question in questions
    ]
    for stream in streams:
        yield stream.answer()


def certainty(answer: weft.Answer) -> float:
    """Return the geometric mean of the probabilities of an answer's tokens."""
    logprobs = [entry.logprob for entry in answer.logprobs or ()]
    return math.exp(sum(logprobs) / max(len(logprobs), 1))


def read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        sys.exit(f"{path} is not a text in UTF-8")


def main() -> None:
    parser = argparse.ArgumentParser(description="Answer questions with a language model.")
    parser.add_argument("question", nargs="*", help="questions (default: some about Python)")
    parser.add_argument("--in", dest="file", type=Path, metavar="FILE", help="a text file with a question in each line")
    parser.add_argument("--model", type=Path, metavar="FOLDER", help="default: the small model that comes with weft")
    parser.add_argument("--system", metavar="TEXT", help="instructions for all questions")
    parser.add_argument("--schema", type=Path, metavar="FILE", help="a JSON schema for the answers")
    parser.add_argument("--tokens", type=int, default=100, help="the most tokens of an answer (default: 100)")
    parser.add_argument("--device", default="auto", help="cpu, cuda, webgpu, ... (default: the best one here)")
    arguments = parser.parse_args()
    try:
        text = read_text(arguments.file) if arguments.file else "\n".join(arguments.question) or SAMPLE
        schema = read_text(arguments.schema) if arguments.schema else None
        questions = [line.strip() for line in text.splitlines() if line.strip()]
        options = {"max_new_tokens": arguments.tokens, "temperature": 0, "json_schema": schema}
        with weft.Generator(arguments.model, device=arguments.device.split(",")) as generator:
            answers = answer_questions(generator, questions, arguments.system, **options)
            for question, answer in zip(questions, answers):
                unfinished = " …" if answer.finish_reason == "length" else ""
                print(f"{question}\n{certainty(answer):6.1%}  {answer.strip()}{unfinished}")
    except (OSError, weft.WeftError) as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
