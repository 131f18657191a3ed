"""Search by meaning: find the lines of a text that are closest to a question, whatever words they use.

    python examples/search.py "how do I get rid of weeds" --in notes.txt

The model (paraphrase-MiniLM-L3-v2, Apache License 2.0) embeds a sentence as 384 numbers; sentences with the same
meaning are close to each other. Batches hold sentences of any length: one model runs at all sizes.
"""

from __future__ import annotations

import argparse
import sys
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from string import punctuation
from typing import Any

import numpy as np
from files import example_file

import weft

Array = np.ndarray[Any, np.dtype[Any]]
LONGEST, BATCH = 128, 16
SAMPLE = """The kettle boils in about three minutes.
Pull dandelions out with their roots after rain, when the soil is soft.
Our train leaves from platform nine at half past six.
The capital of Portugal is Lisbon.
A wok must be very hot before the vegetables go in.
She plays the cello in an orchestra on Thursdays.
The patient has had a fever since Monday and coughs at night.
Restart the router if the connection is lost.
He owes the bank more than the house is worth.
The cat sleeps on the radiator all winter.
"""


class WordPieces:
    """BERT's tokenizer: words, and for unknown words the longest known pieces."""

    def __init__(self, path: Path) -> None:
        self.numbers = {word: number for number, word in enumerate(path.read_text(encoding="utf-8").splitlines())}

    def encode(self, text: str) -> list[int]:
        ids = [number for word in _split_words(text) for number in self._split_word(word)]
        return [self.numbers["[CLS]"], *ids[: LONGEST - 2], self.numbers["[SEP]"]]

    def _split_word(self, word: str) -> list[int]:
        ids: list[int] = []
        start = 0
        while start < len(word):
            before = "##" if start else ""
            end = next((end for end in range(len(word), start, -1) if before + word[start:end] in self.numbers), None)
            if end is None or len(word) > 100:
                return [self.numbers["[UNK]"]]
            ids.append(self.numbers[before + word[start:end]])
            start = end
        return ids


def _split_words(text: str) -> Iterator[str]:
    """Split text into lowercase words without accents; punctuation and Chinese characters are words."""
    plain = [sign for sign in unicodedata.normalize("NFD", text.lower()) if unicodedata.category(sign) != "Mn"]
    yield from "".join(f" {sign} " if _is_word(sign) else sign for sign in plain).split()


def _is_word(sign: str) -> bool:
    return sign in punctuation or unicodedata.category(sign)[0] == "P" or "\u3400" <= sign <= "\u9fff"


def embed(model: weft.Model, pieces: WordPieces, sentences: Sequence[str]) -> Array:
    """Return a unit vector for each sentence."""
    rows = []
    for start in range(0, len(sentences), BATCH):
        numbers = [pieces.encode(sentence) for sentence in sentences[start : start + BATCH]]
        longest = max(map(len, numbers))
        ids = np.array([[*row, *[0] * (longest - len(row))] for row in numbers], np.int64)
        mask = np.array([[1] * len(row) + [0] * (longest - len(row)) for row in numbers], np.int64)
        sentence_output = model.outputs[-1].name
        rows.append(model.run({"input_ids": ids, "attention_mask": mask}, [sentence_output])[sentence_output])
    vectors = np.concatenate(rows)
    return np.asarray(vectors / np.linalg.norm(vectors, axis=1, keepdims=True))


def search(model: weft.Model, pieces: WordPieces, question: str, lines: Sequence[str]) -> Iterable[tuple[float, str]]:
    """Return all lines with their similarity to the question, the most similar first."""
    query, *rows = embed(model, pieces, [question, *lines])
    similarities = [float(row @ query) for row in rows]
    return sorted(zip(similarities, lines), reverse=True)


def main() -> None:
    parser = argparse.ArgumentParser(description="Find the lines of a text that are closest in meaning to a question.")
    parser.add_argument("question", nargs="?", default="how do I get rid of weeds?")
    parser.add_argument("--in", type=Path, dest="text", metavar="FILE", help="a text file; default: a few sentences")
    parser.add_argument("--top", type=int, default=3, metavar="N", help="how many lines to show (default: 3)")
    parser.add_argument("--model", type=Path, help="an ONNX file; default: paraphrase-MiniLM-L3-v2")
    parser.add_argument("--device", default="auto", help="cpu, cuda, webgpu, ... (default: the best one here)")
    arguments = parser.parse_args()
    try:
        text = arguments.text.read_text(encoding="utf-8") if arguments.text else SAMPLE
        model = weft.load(arguments.model or example_file("minilm.onnx"), device=arguments.device.split(","))
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        pieces = WordPieces(example_file("bert_vocabulary.txt"))
        for similarity, line in list(search(model, pieces, arguments.question, lines))[: arguments.top]:
            print(f"{similarity:6.2f}  {line}")
    except (OSError, UnicodeDecodeError, weft.WeftError) as error:
        sys.exit(f"{arguments.text}: not UTF-8 text" if isinstance(error, UnicodeDecodeError) else str(error))


if __name__ == "__main__":
    main()
