"""The pages of the Python reference, from signatures and docstrings of what `weft` exports.

A docstring is Markdown, in which a line `name: text` at the left margin describes a parameter or a field, with further
lines indented below it.
"""

from __future__ import annotations

import ast
import inspect
import io
import itertools
import re
import sys
import textwrap
import tokenize
from collections.abc import Iterator
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from types import UnionType
from typing import Any, Literal, get_origin

import weft

FOLDER = "reference/api"
PAGES = {
    "loading": (
        "Loading models",
        "From a file to a model, and where it runs.",
        ("load", "ModelSource", "compile", "devices", "to_device", "DevicePolicy", "Device"),
    ),
    "model": ("A model", "What `weft.load` returns, and what its attributes and methods give.", ("Model",)),
    "results": (
        "Tensors and reports",
        "What models take, and what they tell of themselves.",
        (
            "TensorSpec", "Metadata", "random_inputs", "read_inputs", "Memory", "Profile", "Benchmark", "DeviceReport",
            "Attempt", "KernelList", "ModelKernel", "compare", "ModelComparison", "HostStep",
            "DeviceTensor", "Cancellation",
        ),
    ),
    "files": (
        "Files",
        "From one file to another: fewer nodes, narrower numbers, C.",
        ("optimize", "OptimizationReport", "quantize", "QuantizationReport", "export_c"),
    ),
    "building": ("Building models", "Models that are written in Python.", ("Graph", "Tensor", "ops")),
}  # fmt: skip
INNER = {"session", "move_to", "program", "source", "plan", "check_usable", "check_on", "constant_like", "input_of"}
"""Methods that other rooms of weft call."""
_ENTRY = re.compile(r"^(\*{0,2}[a-z_]\w*(?:, [a-z_]\w*)*): (.*)$")
_GUIDE = re.compile(r"\(?docs/guides/(\w+)\.md\)?")


def pages() -> Iterator[tuple[str, str, str]]:
    """Path, title and text of each page."""
    placed = {name for _, _, names in PAGES.values() for name in names}
    errors = [name for name in weft.__all__ if _is_error(name)]
    rest = [name for name in weft.__all__ if name not in placed and name not in errors and not name.startswith("__")]
    found = []
    for key, (title, introduction, names) in PAGES.items():
        there = [name for name in names if name in weft.__all__]
        found.append((key, title, introduction, there + (rest if key == "results" else [])))
    introduction = "Every error is a `weft.WeftError` that names the file, node or value at fault and says what to do."
    found.append(("errors", "Errors and warnings", introduction, sorted(errors, key=_depth)))
    yield f"{FOLDER}/index.md", "Overview", _overview(found)
    for key, title, introduction, names in found:
        yield f"{FOLDER}/{key}.md", title, "\n\n".join([f"# {title}", introduction, *map(_entry, names)]) + "\n"


def _overview(found: list[tuple[str, str, str, list[str]]]) -> str:
    parts = [
        "# Python",
        "All that `import weft` offers. What is not listed here is weft's own, and may change at any time.",
    ]
    for key, title, _, names in found:
        rows = [f"| [`{name}`]({key}.md#{name.lower()}) | {_cell(_summary(name))} |" for name in names]
        parts.append("\n".join([f"## {title}", "", "| name | |", "| --- | --- |", *rows]))
    return "\n\n".join(parts) + "\n"


def _entry(name: str) -> str:
    thing = getattr(weft, name)
    head = f"## {name} {{#{name.lower()}}}"
    if inspect.ismodule(thing):
        return f"{head}\n\n{text_of(inspect.getdoc(thing))}"
    if _is_alias(thing):
        return f"{head}\n\n{_alias_text(name)}"
    if not inspect.isclass(thing):
        told = inspect.getdoc(thing) or ""
        if options := _options(thing):
            told = re.sub(r"(?m)^given: see.*$", (inspect.getdoc(options) or "").replace("\\", r"\\"), told)
        return f"{head}\n\n{_signature(f'weft.{name}', thing)}\n\n{text_of(told)}"
    if issubclass(thing, BaseException):
        bases = ", ".join(f"`{base.__name__}`" for base in thing.__bases__)
        return f"{head}\n\n{text_of(inspect.getdoc(thing))}\n\nIt is a {bases}."
    return "\n\n".join([head, *_class_parts(name, thing)])


def _class_parts(name: str, kind: type) -> Iterator[str]:
    if name in ("DevicePolicy", "Graph", "Cancellation"):  # which users make
        yield _signature(f"weft.{name}", kind)
    if is_dataclass(kind) and name != "DevicePolicy":
        yield from _fields(kind)
    else:
        yield text_of(inspect.getdoc(kind))
    for member, value in members(kind):
        anchor = f"{{#{name.lower()}-{member.lower()}}}"
        if isinstance(value, property):
            returns = inspect.signature(value.fget).return_annotation if value.fget else ""
            head, form = member, f"```python\n{name.lower()}.{member}: {returns}\n```"
        else:
            head, form = f"{member}()", _signature(f"{name.lower()}.{member}", value)
        yield f"### {head} {anchor}\n\n{form}\n\n{text_of(inspect.getdoc(value))}"


def _fields(kind: type) -> Iterator[str]:
    """What a record is, its fields, and the records in them that have no entry of their own."""
    shown = [field for field in fields(kind) if not field.name.startswith("_")]
    told = field_texts(kind)
    lines = []
    for line in (inspect.getdoc(kind) or "").split("\n"):
        entry = _ENTRY.match(line)
        if entry and any(entry[1] == field.name for field in shown):
            told[entry[1]] = entry[2]
        else:
            lines.append(line)
    yield text_of("\n".join(lines))
    rows = [f"| `{field.name}` | {_code(_type(field.type))} | {_cell(told.get(field.name, ''))} |" for field in shown]
    if any(told.get(field.name) for field in shown):
        yield "\n".join(["| field | type | |", "| --- | --- | --- |", *rows])
    else:
        rows = [row.rsplit("|", 2)[0] + "|" for row in rows]
        yield "\n".join(["| field | type |", "| --- | --- |", *rows])
    for part in _parts_of(kind):
        yield f"### {part.__name__} {{#{kind.__name__.lower()}-{part.__name__.lower()}}}"
        yield from _fields(part)


def _parts_of(kind: type) -> list[type]:
    names = vars(sys.modules[kind.__module__])
    words = [word for field in fields(kind) for word in re.findall(r"[A-Z]\w+", str(field.type))]
    found = [names[word] for word in dict.fromkeys(words) if inspect.isclass(names.get(word))]
    return [part for part in found if is_dataclass(part) and part.__name__ not in weft.__all__ and part is not kind]


def _alias_text(name: str) -> str:
    """What the string below an assignment says of a name for several types."""
    body = ast.parse(inspect.getsource(sys.modules[weft._LAZY[name]])).body
    for statement, below in itertools.pairwise(body):
        match statement, below:
            case ast.Assign(targets=[ast.Name(id=found)]), ast.Expr(value=ast.Constant(value=str(text))) if (
                found == name
            ):
                return inspect.cleandoc(text)
    return "A name for several types."


def members(kind: type) -> list[tuple[str, Any]]:
    """Public methods and properties of a class, its own and those of bases of weft's."""
    found: dict[str, Any] = {}
    for base in reversed([base for base in kind.__mro__ if base.__module__.startswith("weft")]):
        for name, value in vars(base).items():
            plain = value.__func__ if isinstance(value, staticmethod | classmethod) else value
            if (
                not name.startswith("_")
                and name not in INNER
                and (isinstance(plain, property) or inspect.isfunction(plain))
            ):
                found[name] = plain
    return list(found.items())


def field_texts(kind: type) -> dict[str, str]:
    """What the source says of fields: in the string below one, or in the comment behind it."""
    found: dict[str, str] = {}
    for base in reversed(kind.__mro__):
        if base.__module__.startswith("weft"):
            found.update(_texts_in(textwrap.dedent(inspect.getsource(base))))
    return found


def _texts_in(source: str) -> dict[str, str]:
    comments = {
        token.start[0]: token.string.lstrip("# ")
        for token in tokenize.generate_tokens(io.StringIO(source).readline)
        if token.type == tokenize.COMMENT
    }
    body = ast.parse(source).body[0].body  # type: ignore[attr-defined]
    found = {}
    for place, statement in enumerate(body):
        match statement:
            case ast.AnnAssign(target=ast.Name(id=name)):
                below = body[place + 1] if place + 1 < len(body) else None
                match below:
                    case ast.Expr(value=ast.Constant(value=str(text))):
                        found[name] = inspect.cleandoc(text)
                    case _ if statement.end_lineno in comments:
                        found[name] = comments[statement.end_lineno]
    return found


def text_of(docstring: str | None) -> str:
    """A docstring as Markdown: lines `name: text` become a list."""
    parts: list[str] = []
    listed = False
    for line in (docstring or "").split("\n"):
        entry = _ENTRY.match(line)
        if entry and len(line.split()) > 1:
            if not listed:
                parts.append("")
            names = ", ".join(f"`{name}`" for name in entry[1].split(", "))
            parts.append(f"- {names}: {entry[2]}")
            listed = True
        elif listed and line.startswith(" "):
            parts.append(f"  {line.strip()}")
        else:
            if listed and line.strip():
                parts.append("")
            listed = listed and not line.strip()
            parts.append(line)
    return _GUIDE.sub(r"([guide](../../guides/\1.md))", "\n".join(parts).strip())


def _signature(name: str, function: Any) -> str:
    """As Python writes it, a line for each parameter where it is long."""
    signature = _with_options(inspect.signature(function), function)
    parameters = [each for each in signature.parameters.values() if each.name not in ("self", "unknown")]
    texts: list[str] = []
    starred = False
    for each in parameters:
        if each.kind is each.KEYWORD_ONLY and not starred:
            texts.append("*")
        starred = starred or each.kind in (each.KEYWORD_ONLY, each.VAR_POSITIONAL)
        texts.append(_parameter(each))
    gives = "" if inspect.isclass(function) else _arrow(signature.return_annotation)
    line = f"{name}({', '.join(texts)}){gives}"
    if len(line) > 96:
        line = f"{name}(\n" + "".join(f"    {text},\n" for text in texts) + f"){gives}"
    return f"```python\n{line}\n```"


def _with_options(signature: inspect.Signature, function: Any) -> inspect.Signature:
    """With the fields of the record that `**given` makes, where the docstring names one."""
    options = _options(function)
    if options is None:
        return signature
    plain = [each for each in signature.parameters.values() if each.kind is not each.VAR_KEYWORD]
    named = [
        inspect.Parameter(
            field.name,
            inspect.Parameter.KEYWORD_ONLY,
            annotation=field.type,
            default=inspect.Parameter.empty if field.default is MISSING else field.default,
        )
        for field in fields(options)
    ]
    return signature.replace(parameters=[*plain, *named])


def _options(function: Any) -> Any:
    named = re.search(r"^given: see `(\w+)`", inspect.getdoc(function) or "", re.MULTILINE)
    return function.__globals__[named[1]] if named else None


def _parameter(each: inspect.Parameter) -> str:
    star = {each.VAR_POSITIONAL: "*", each.VAR_KEYWORD: "**"}.get(each.kind, "")
    said = "" if each.annotation is each.empty else f": {_type(each.annotation)}"
    default = "" if each.default is each.empty else f" = {each.default!r}" if said else f"={each.default!r}"
    return f"{star}{each.name}{said}{default}"


def _arrow(annotation: Any) -> str:
    return "" if annotation is inspect.Signature.empty else f" -> {_type(annotation)}"


def _type(annotation: Any) -> str:
    if isinstance(annotation, str):
        return re.sub(r"\b[A-Z]\w+\b", lambda word: _choices().get(word[0], word[0]), annotation)
    if inspect.isclass(annotation) and get_origin(annotation) is None:
        return annotation.__name__
    return str(annotation).replace("typing.", "")


@cache
def _choices() -> dict[str, str]:
    """Names that weft's modules give to choices of words, and the choices."""
    return {
        name: str(value).replace("typing.", "")
        for module in [module for key, module in sys.modules.items() if key.startswith("weft.")]
        for name, value in vars(module).items()
        if get_origin(value) is Literal
    }


def _is_error(name: str) -> bool:
    thing = getattr(weft, name)
    return inspect.isclass(thing) and issubclass(thing, BaseException)


def _depth(name: str) -> tuple[bool, int, str]:
    kind = getattr(weft, name)
    return issubclass(kind, Warning), len(kind.__mro__), name


def _is_alias(thing: Any) -> bool:
    return get_origin(thing) is not None or isinstance(thing, UnionType)


def _summary(name: str) -> str:
    thing = getattr(weft, name)
    told = _alias_text(name) if _is_alias(thing) else inspect.getdoc(thing) or ""
    first = told.partition("\n\n")[0].replace("\n", " ")
    return _GUIDE.sub("", first).strip().replace(" .", ".")


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def _code(text: str) -> str:
    return f"`{text}`".replace("|", "\\|")
