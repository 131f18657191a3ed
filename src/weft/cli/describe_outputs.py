"""What comes out of a model, for people: classes by name, small tensors whole, large ones in a few numbers."""

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
WHOLE = 64  # elements of a tensor that is printed
ROWS = 8  # samples whose classes are shown
CLASSES = re.compile(r"logit|prob|class|label|score|softmax|pred", re.IGNORECASE)
IMAGENET = (1000, 1001)


@dataclass(frozen=True, slots=True)
class ClassNames:
    """Names of classes and where they are from; `asked` where a user gave them."""

    names: tuple[str, ...] = ()
    origin: str = ""
    asked: bool = False


NO_NAMES = ClassNames()


def describe(name: str, content: Any, classes: ClassNames = NO_NAMES, top: int = SHOWN_VALUES) -> dict[str, Any]:
    """An output in a few numbers; classes where it is evidently that, small tensors whole."""
    if not isinstance(content, np.ndarray):
        length = len(content) if isinstance(content, (list, dict)) else None
        record = {"name": name, "kind": type(content).__name__, "length": length, "first": repr(content)[:200]}
        rows = _of_dicts(content, top)
        return {**record, "classes": rows} if rows else record
    record = {"name": name, "dtype": dtype_name(content), "shape": content.shape}
    first = content.reshape(-1)[:SHOWN_VALUES]
    if content.dtype.kind in "OUS":
        return {**record, "first": [str(item) for item in first], **_values(content)}
    if content.dtype.kind == "c":
        return {**record, "first": [str(complex(item)) for item in first]}
    whole = content.dtype.kind in "iub"
    numbers = first if whole else first.astype(np.float64)
    record["first"] = numbers.tolist()
    if content.size:
        record |= _statistics(content, whole)
    found = _classes(name, content, classes, top)
    return {**record, **_values(content), **found}


def _values(content: Array) -> dict[str, Any]:
    if not 0 < content.size <= WHOLE:
        return {}
    plain = content if content.dtype.kind in "iubOUS" else content.astype(np.float64)
    return {"values": plain.tolist()}


def _statistics(content: Array, whole: bool) -> dict[str, Any]:
    """Of what is finite; how much is not, where anything is not."""
    if whole:
        wide = content.astype(np.float64)
        return {"min": content.min().item(), "mean": float(wide.mean()), "max": content.max().item()}
    wide = content.astype(np.float64)
    nan, infinite = int(np.isnan(wide).sum()), int(np.isinf(wide).sum())
    finite = wide[np.isfinite(wide)] if nan or infinite else wide
    nothing = float("nan")
    least, mean, most = (finite.min(), finite.mean(), finite.max()) if finite.size else (nothing, nothing, nothing)
    odd = {"nan": nan, "infinite": infinite} if nan or infinite else {}
    return {"min": float(least), "mean": float(mean), "max": float(most), **odd}


# -- classes -----------------------------------------------------------------------------------------------------------


def _classes(name: str, content: Array, classes: ClassNames, top: int) -> dict[str, Any]:
    """The best classes of each sample, where an output is evidently scores of classes."""
    rows = _rows(content)
    if rows is None or content.dtype.kind not in "fV":
        return {}
    count = rows.shape[1]
    named = bool(classes.names) and count - len(classes.names) in (0, 1)
    shift = count - len(classes.names) if named else 0  # some have a class for what is none
    scores = rows.astype(np.float64)
    if not np.isfinite(scores).all():
        return {}
    shares = bool((scores >= -1e-6).all() and np.allclose(scores.sum(axis=1), 1, atol=1e-3))
    called = bool(CLASSES.search(name)) and content.ndim > 1  # in one dim, scores may be of samples
    evident = named or shares or count in IMAGENET or called
    if not evident or count < 2:
        return {}
    single = bool((scores >= 0).all() and (scores <= 1).all())
    softmax = not shares and not single
    shown = _softmax(scores) if softmax else scores
    listed = []
    for sample in range(min(len(rows), ROWS)):
        best = np.argsort(-scores[sample], kind="stable")[: max(top, 1)]
        listed.append(
            [
                {
                    "index": int(index),
                    "label": _label(classes.names, int(index) - shift) if named else None,
                    "score": float(scores[sample, index]),
                    "probability": float(shown[sample, index]),
                }
                for index in best
            ]
        )
    return {"classes": listed, "softmax": softmax, "samples": len(rows)}


def _label(names: Sequence[str], index: int) -> str:
    return names[index] if 0 <= index < len(names) else "background"


def _rows(content: Array) -> Array | None:
    """[samples, classes] of [K], [N, K], [N, K, 1, 1] or [N, 1, 1, K]."""
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
    raised = np.exp(scores - scores.max(axis=1, keepdims=True))
    result: Array = raised / raised.sum(axis=1, keepdims=True)
    return result


def _of_dicts(content: Any, top: int) -> list[list[dict[str, Any]]]:
    """What ZipMap gives: a dict of classes for each sample."""
    if not isinstance(content, list) or not content or not all(isinstance(each, dict) for each in content):
        return []
    listed = []
    for each in content[:ROWS]:
        best = sorted(each.items(), key=lambda pair: -float(pair[1]))[: max(top, 1)]
        listed.append(
            [
                {"index": None, "label": str(key), "score": float(score), "probability": float(score)}
                for key, score in best
            ]
        )
    return listed


# -- printing ----------------------------------------------------------------------------------------------------------


def print_outputs(records: Sequence[Mapping[str, Any]], classes: ClassNames) -> None:
    """The outputs as a table, then what is small enough to be seen whole, and classes."""
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
            odd = [f"{item[key]} {word}" for key, word in (("nan", "NaN"), ("infinite", "infinite")) if item[key]]
            line = f"{item['name']} has {' and '.join(odd)} values; min, mean and max are of the others"
            console.print(Text(output.escape_unprintable(line), "bold yellow"))
    for item in records:
        if "classes" in item:
            _print_classes(console, item, classes)
        elif "values" in item and int(np.prod(item["shape"], dtype=np.int64)) > SHOWN_VALUES:
            _print_whole(console, item)


def _print_classes(console: Any, item: Mapping[str, Any], classes: ClassNames) -> None:
    named = any(each["label"] is not None for row in item["classes"] for each in row)
    numbered = any(each["index"] is not None for row in item["classes"] for each in row)
    several = len(item["classes"]) > 1
    rows = [
        (
            *((number,) if several else ()),
            *((each["label"],) if named else ()),
            *((each["index"],) if numbered else ()),
            f"{each['probability']:.4g}",
        )
        for number, row in enumerate(item["classes"])
        for each in row
    ]
    score = "probability" if item.get("softmax") else "score"
    columns = [
        *(("sample",) if several else ()),
        *(("class",) if named else ()),
        *(("index",) if numbered else ()),
        score,
    ]
    console.print()
    console.print(output.table(f"classes of {item['name']}", columns, rows, right=("sample", "index", score)))
    notes = ["probabilities are the softmax of what the model gives"] if item.get("softmax") else []
    if classes.origin and named and numbered:
        notes.append(f"names from {classes.origin}")
    left = item.get("samples", 0) - len(item["classes"])
    notes += [f"{left} more samples are not shown"] if left > 0 else []
    if notes:
        console.print(Text(output.escape_unprintable("; ".join(notes)), "dim"))


def _print_whole(console: Any, item: Mapping[str, Any]) -> None:
    array = np.asarray(item["values"], object if item["dtype"] == "string" else None).reshape(item["shape"])
    with np.printoptions(precision=5, suppress=True, linewidth=max(output.terminal_width() - 2, 40), threshold=WHOLE):
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
