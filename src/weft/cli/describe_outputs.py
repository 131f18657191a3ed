"""Describe the outputs of a model: named classes, small tensors in full, large ones by a few statistics."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from rich.text import Text

from weft.cli import output
from weft.ir.arrays import Array
from weft.ir.dtypes import from_numpy
from weft.records import dataclass

SHOWN_VALUES = 5
MAX_PRINTED = 64  # elements of a tensor that is printed in full
SHOWN_SAMPLES = 8
CLASS_OUTPUT = re.compile(r"logit|prob|class|label|score|softmax|pred", re.IGNORECASE)
IMAGENET_CLASSES = (1000, 1001)


@dataclass(frozen=True, slots=True)
class ClassNames:
    """Class names and their source."""

    names: tuple[str, ...] = ()
    origin: str = ""
    is_user_given: bool = False


NO_NAMES = ClassNames()


def describe_output(
    name: str, content: Any, classes: ClassNames = NO_NAMES, top: int = SHOWN_VALUES, files: Sequence[str] = ()
) -> dict[str, Any]:
    """Return statistics of an output, all values of a small one, and the best classes if it holds class scores.

    `files` are the image files that the rows of the output belong to.
    """
    if not isinstance(content, np.ndarray):
        length = len(content) if isinstance(content, (list, dict)) else None
        record = {"name": name, "kind": type(content).__name__, "length": length, "first": repr(content)[:200]}
        rows = _dict_classes(content, top)
        return {**record, "classes": rows} if rows else record
    record = {"name": name, "dtype": dtype_name(content), "shape": content.shape}
    first = content.reshape(-1)[:SHOWN_VALUES]
    if content.dtype.kind in "OUS":
        return {**record, "first": [str(item) for item in first], **_values(content)}
    if content.dtype.kind == "c":
        return {**record, "first": [str(complex(item)) for item in first]}
    is_integer = content.dtype.kind in "iub"
    numbers = first if is_integer else first.astype(np.float64)
    record["first"] = numbers.tolist()
    if content.size:
        record |= _statistics(content, is_integer)
    return {**record, **_values(content), **_best_classes(name, content, classes, top, files)}


def _values(content: Array) -> dict[str, Any]:
    if not 0 < content.size <= MAX_PRINTED:
        return {}
    plain = content if content.dtype.kind in "iubOUS" else content.astype(np.float64)
    return {"values": plain.tolist()}


def _statistics(content: Array, is_integer: bool) -> dict[str, Any]:
    """Return statistics of the finite elements, and the number of others if there are any."""
    wide = content.astype(np.float64)
    if is_integer:
        return {"min": content.min().item(), "mean": float(wide.mean()), "max": content.max().item()}
    nan, infinite = int(np.isnan(wide).sum()), int(np.isinf(wide).sum())
    finite = wide[np.isfinite(wide)] if nan or infinite else wide
    least, mean, most = (finite.min(), finite.mean(), finite.max()) if finite.size else (np.nan, np.nan, np.nan)
    counts = {"nan": nan, "infinite": infinite} if nan or infinite else {}
    return {"min": float(least), "mean": float(mean), "max": float(most), **counts}


# -- classes -----------------------------------------------------------------------------------------------------------


def _best_classes(name: str, content: Array, classes: ClassNames, top: int, files: Sequence[str]) -> dict[str, Any]:
    """Return the best classes of each sample if an output evidently holds class scores."""
    rows = _class_rows(content)
    if rows is None or content.dtype.kind not in "fV":
        return {}
    count = rows.shape[1]
    has_names = bool(classes.names) and count - len(classes.names) in (0, 1)
    offset = count - len(classes.names) if has_names else 0  # some models begin with a background class
    scores = rows.astype(np.float64)
    if not np.isfinite(scores).all():
        return {}
    sums_to_one = bool((scores >= -1e-6).all() and np.allclose(scores.sum(axis=1), 1, atol=1e-3))
    has_class_name = bool(CLASS_OUTPUT.search(name)) and content.ndim > 1  # in one dim, scores may be of samples
    is_evident = has_names or sums_to_one or count in IMAGENET_CLASSES or has_class_name
    if not is_evident or count < 2:
        return {}
    in_unit_range = bool((scores >= 0).all() and (scores <= 1).all())
    needs_softmax = not sums_to_one and not in_unit_range
    probabilities = _softmax(scores) if needs_softmax else scores
    has_files = len(files) == len(rows)
    samples = []
    for sample in range(len(rows) if has_files else min(len(rows), SHOWN_SAMPLES)):
        best = np.argsort(-scores[sample], kind="stable")[: max(top, 1)]
        samples.append(
            [
                {
                    **({"file": files[sample]} if has_files else {}),
                    "index": int(index),
                    "label": _label(classes.names, int(index) - offset) if has_names else None,
                    "score": float(scores[sample, index]),
                    "probability": float(probabilities[sample, index]),
                }
                for index in best
            ]
        )
    return {"classes": samples, "softmax": needs_softmax, "samples": len(rows)}


def _label(names: Sequence[str], index: int) -> str:
    return names[index] if 0 <= index < len(names) else "background"


def _class_rows(content: Array) -> Array | None:
    """Reshape [K], [N, K], [N, K, 1, 1] or [N, 1, 1, K] to [samples, classes]; None for other shapes."""
    shape = content.shape
    match len(shape):
        case 1 if shape[0] > 1:
            return content.reshape(1, -1)
        case 2:
            return content
        case 4 if shape[2:] == (1, 1) or shape[1:3] == (1, 1):
            return content.reshape(shape[0], -1)
        case 3 if shape[1] == 1:
            return content.reshape(shape[0], -1)
    return None


def _softmax(scores: Array) -> Array:
    exponentials = np.exp(scores - scores.max(axis=1, keepdims=True))
    result: Array = exponentials / exponentials.sum(axis=1, keepdims=True)
    return result


def _dict_classes(content: Any, top: int) -> list[list[dict[str, Any]]]:
    """Return the best classes of the output of ZipMap, which is a dict of classes for each sample."""
    if not isinstance(content, list) or not content or not all(isinstance(each, dict) for each in content):
        return []
    return [
        [
            {"index": None, "label": str(key), "score": float(score), "probability": float(score)}
            for key, score in sorted(each.items(), key=lambda pair: -float(pair[1]))[: max(top, 1)]
        ]
        for each in content[:SHOWN_SAMPLES]
    ]


# -- printing ----------------------------------------------------------------------------------------------------------


def print_outputs(records: Sequence[Mapping[str, Any]], classes: ClassNames) -> None:
    """Print a table of the outputs, then classes and small tensors."""
    console = output.console()
    rows = [
        (
            item["name"],
            item.get("dtype", item.get("kind", "")),
            output.format_shape(item["shape"]) if "shape" in item else f"length {item['length']}",
            *(f"{item[key]:.6g}" if key in item else "" for key in ("min", "mean", "max")),
            _first_values(item),
        )
        for item in records
    ]
    columns = ("name", "dtype", "shape", "min", "mean", "max", "first values")
    console.print(output.table("outputs", columns, rows, right=("min", "mean", "max")))
    for item in records:
        if item.get("nan") or item.get("infinite"):
            counts = [f"{item[key]} {word}" for key, word in (("nan", "NaN"), ("infinite", "infinite")) if item[key]]
            line = f"{item['name']} has {' and '.join(counts)} values; min, mean and max leave them out"
            console.print(Text(output.escape_unprintable(line), "bold yellow"))
    for item in records:
        if "classes" in item:
            _print_classes(console, item, classes)
        elif "values" in item and int(np.prod(item["shape"], dtype=np.int64)) > SHOWN_VALUES:
            _print_values(console, item)


def _print_classes(console: Any, item: Mapping[str, Any], classes: ClassNames) -> None:
    shown = item["classes"][:SHOWN_SAMPLES]
    entries = [each for row in shown for each in row]
    score = "probability" if item.get("softmax") else "score"
    columns = {
        "file": any("file" in each for each in entries),
        "sample": len(shown) > 1 and not any("file" in each for each in entries),
        "class": any(each["label"] is not None for each in entries),
        "index": any(each["index"] is not None for each in entries),
        score: True,
    }
    rows = []
    for number, row in enumerate(shown):
        for each in row:
            cells = (each.get("file"), number, each["label"], each["index"], f"{each['probability']:.4g}")
            rows.append([cell for cell, is_shown in zip(cells, columns.values()) if is_shown])
    headings = [column for column, is_shown in columns.items() if is_shown]
    console.print()
    console.print(output.table(f"classes of {item['name']}", headings, rows, right=("sample", "index", score)))
    notes = ["probabilities are the softmax of the output"] if item.get("softmax") else []
    if classes.origin and columns["class"] and columns["index"]:
        notes.append(f"class names from {classes.origin}")
    hidden = item.get("samples", 0) - len(shown)
    notes += [f"{hidden} more samples are not shown"] if hidden > 0 else []
    if notes:
        console.print(Text(output.escape_unprintable("; ".join(notes)), "dim"))


def _print_values(console: Any, item: Mapping[str, Any]) -> None:
    array = np.asarray(item["values"], object if item["dtype"] == "string" else None).reshape(item["shape"])
    with np.printoptions(
        precision=5, suppress=True, linewidth=max(output.terminal_width() - 2, 40), threshold=MAX_PRINTED
    ):
        text = str(array)
    console.print()
    console.print(Text(output.escape_unprintable(item["name"]), "bold"))
    for line in text.splitlines():
        console.print(Text(f"  {output.escape_unprintable(line)}"), soft_wrap=True)


def _first_values(item: Mapping[str, Any]) -> str:
    first = item["first"]
    if isinstance(first, str):
        return first[:60]
    texts = [f"{value:.4g}" if isinstance(value, float) else str(value)[:40] for value in first]
    elements = int(np.prod(item["shape"], dtype=np.int64))
    return " ".join(texts) + (" …" if elements > len(texts) else "")


def dtype_name(array: Array) -> str:
    return str(from_numpy(array.dtype))
