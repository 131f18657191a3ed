"""Generate the pages of the Python reference from the signatures and docstrings of public names.

A docstring is Markdown. A line `name: text` at the left margin describes a parameter or a field, with further lines
indented below it.
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
from dataclasses import fields, is_dataclass
from functools import cache, cached_property
from types import UnionType
from typing import Any, Literal, get_origin

import weft

FOLDER = "reference/api"
PAGES = {
    "loading": (
        "Load a model",
        "Load and compile models, and choose a device.",
        ("load", "ModelSource", "compile", "devices", "to_device", "DevicePolicy", "Device"),
    ),
    "model": ("Model", "The result of `weft.load`: run it, inspect it, measure it.", ("Model",)),
    "results": (
        "Tensors and reports",
        "Inputs of models, and reports about them.",
        (
            "TensorSpec", "Metadata", "random_inputs", "read_inputs", "Memory", "Profile", "Benchmark", "DeviceReport",
            "Attempt", "KernelList", "ModelKernel", "compare", "ModelComparison", "HostStep",
            "DeviceTensor", "Cancellation",
        ),
    ),
    "many-rows": (
        "Many rows",
        "Functions for Ray, Spark and Dask: [the guide](../../guides/clusters.md) shows how.",
        ("batch", "BatchFunction", "spark_udf", "ray_deployment"),
    ),
    "generation": (
        "Generate text",
        "Text from language models: [the guide](../../guides/generate-text.md) shows how.",
        ("Generator", "GenerationOptions", "Answer", "AnswerStream", "GenerationMemory"),
    ),
    "files": (
        "Files",
        "Optimize, quantize and export models.",
        ("optimize", "OptimizationReport", "quantize", "QuantizationReport", "export_c"),
    ),
    "building": ("Build a model", "Write models in Python.", ("Graph", "Tensor", "ops")),
}  # fmt: skip
INNER = {
    "session", "move_to", "program", "source", "plan", "check_usable", "check_on", "constant_like", "input_of", "bind",
    "put", "run_columns", "row_rank",
}  # fmt: skip
"""Public methods that only weft itself calls."""
_ENTRY = re.compile(r"^(\*{0,2}[a-z_]\w*(?:, [a-z_]\w*)*): (.*)$")
_GUIDE = re.compile(r"\(?docs/guides/([\w-]+)\.md\)?")


def pages() -> Iterator[tuple[str, str, str]]:
    """Yield the path, title and text of each page."""
    assigned = {name for _, _, names in PAGES.values() for name in names}
    errors = [name for name in weft.__all__ if _is_error(name)]
    other_names = [
        name for name in weft.__all__ if name not in assigned and name not in errors and not name.startswith("__")
    ]
    sections = []
    for key, (title, introduction, names) in PAGES.items():
        public = [name for name in names if name in weft.__all__]
        sections.append((key, title, introduction, public + (other_names if key == "results" else [])))
    introduction = "Every error is a `weft.WeftError` that names the file, node or value at fault and says what to do."
    sections.append(("errors", "Errors and warnings", introduction, sorted(errors, key=_depth)))
    yield f"{FOLDER}/index.md", "Overview", _overview(sections)
    for key, title, introduction, names in sections:
        yield f"{FOLDER}/{key}.md", title, "\n\n".join([f"# {title}", introduction, *map(_entry, names)]) + "\n"


def _overview(sections: list[tuple[str, str, str, list[str]]]) -> str:
    parts = [
        "# Python",
        "All public names of `import weft`. Anything else is internal and may change at any time.",
    ]
    for key, title, _, names in sections:
        rows = [f"| [`{name}`]({key}.md#{name.lower()}) | {_cell(_summary(name))} |" for name in names]
        parts.append("\n".join([f"## {title}", "", "| name | |", "| --- | --- |", *rows]))
    return "\n\n".join(parts) + "\n"


def _entry(name: str) -> str:
    member = getattr(weft, name)
    head = f"## {name} {{#{name.lower()}}}"
    if inspect.ismodule(member):
        return f"{head}\n\n{format_docstring(inspect.getdoc(member))}"
    if _is_alias(member):
        return f"{head}\n\n{_alias_text(name)}"
    if not inspect.isclass(member):
        docstring = inspect.getdoc(member) or ""
        return f"{head}\n\n{_signature(f'weft.{name}', member)}\n\n{format_docstring(docstring)}"
    if issubclass(member, BaseException):
        bases = ", ".join(f"`{base.__name__}`" for base in member.__bases__)
        return f"{head}\n\n{format_docstring(inspect.getdoc(member))}\n\nBases: {bases}."
    return "\n\n".join([head, *_class_parts(name, member)])


def _class_parts(name: str, kind: type) -> Iterator[str]:
    if name in ("DevicePolicy", "Graph", "Cancellation", "Generator"):  # users create these
        yield _signature(f"weft.{name}", kind)
    if is_dataclass(kind) and name != "DevicePolicy":
        yield from _fields(kind)
    else:
        yield format_docstring(inspect.getdoc(kind))
    for member, value in members(kind):
        anchor = f"{{#{name.lower()}-{member.strip('_').lower()}}}"
        if isinstance(value, property | cached_property):
            getter = value.func if isinstance(value, cached_property) else value.fget
            returns = inspect.signature(getter).return_annotation if getter else ""
            head, form = member, f"```python\n{name.lower()}.{member}: {returns}\n```"
        elif member == "__call__":
            head, form = f"{name.lower()}()", _signature(name.lower(), value)
        else:
            head, form = f"{member}()", _signature(f"{name.lower()}.{member}", value)
        yield f"### {head} {anchor}\n\n{form}\n\n{format_docstring(inspect.getdoc(value))}"


def _fields(kind: type) -> Iterator[str]:
    """Yield the docstring of a record, its fields, and nested records that have no entry of their own."""
    public = [field for field in fields(kind) if not field.name.startswith("_")]
    texts = field_texts(kind)
    lines: list[str] = []
    name = None  # of the field that the lines describe
    for line in (inspect.getdoc(kind) or "").split("\n"):
        entry = _ENTRY.match(line)
        if entry and any(entry[1] == field.name for field in public):
            name, texts[entry[1]] = entry[1], entry[2]
        elif name is not None and line.startswith("    "):
            texts[name] += f" {line.strip()}"
        else:
            name = None
            lines.append(line)
    yield format_docstring("\n".join(lines))
    rows = [f"| `{field.name}` | {_code(_type(field.type))} | {_cell(texts.get(field.name, ''))} |" for field in public]
    if any(texts.get(field.name) for field in public):
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
    classes = [names[word] for word in dict.fromkeys(words) if inspect.isclass(names.get(word))]
    return [part for part in classes if is_dataclass(part) and part.__name__ not in weft.__all__ and part is not kind]


def _alias_text(name: str) -> str:
    """Return the docstring below the assignment of a type alias."""
    body = ast.parse(inspect.getsource(sys.modules[weft._LAZY[name]])).body
    for statement, below in itertools.pairwise(body):
        match statement, below:
            case ast.Assign(targets=[ast.Name(id=target)]), ast.Expr(value=ast.Constant(value=str(text))) if (
                target == name
            ):
                return inspect.cleandoc(text)
    return "A type alias."


def members(kind: type) -> list[tuple[str, Any]]:
    """List the public methods and properties of a class and of its bases in weft."""
    public: dict[str, Any] = {}
    for base in reversed([base for base in kind.__mro__ if base.__module__.startswith("weft")]):
        for name, value in vars(base).items():
            plain = value.__func__ if isinstance(value, staticmethod | classmethod) else value
            if (
                (not name.startswith("_") or name == "__call__")
                and name not in INNER
                and (isinstance(plain, property | cached_property) or inspect.isfunction(plain))
            ):
                public[name] = plain
    return list(public.items())


def field_texts(kind: type) -> dict[str, str]:
    """Return the descriptions of fields: the string below a field, or the comment after it."""
    texts: dict[str, str] = {}
    for base in reversed(kind.__mro__):
        if base.__module__.startswith("weft"):
            texts.update(_parse_field_texts(textwrap.dedent(inspect.getsource(base))))
    return texts


def _parse_field_texts(source: str) -> dict[str, str]:
    comments = {
        token.start[0]: token.string.lstrip("# ")
        for token in tokenize.generate_tokens(io.StringIO(source).readline)
        if token.type == tokenize.COMMENT
    }
    body = ast.parse(source).body[0].body  # type: ignore[attr-defined]
    texts = {}
    for place, statement in enumerate(body):
        match statement:
            case ast.AnnAssign(target=ast.Name(id=name)):
                below = body[place + 1] if place + 1 < len(body) else None
                match below:
                    case ast.Expr(value=ast.Constant(value=str(text))):
                        texts[name] = inspect.cleandoc(text)
                    case _ if statement.end_lineno in comments:
                        texts[name] = comments[statement.end_lineno]
    return texts


def format_docstring(docstring: str | None) -> str:
    """Convert a docstring to Markdown: lines `name: text` become a list."""
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
    """Format a signature, with one line per parameter if it is long."""
    signature = inspect.signature(function)
    parameters = [each for each in signature.parameters.values() if each.name not in ("self", "unknown")]
    texts: list[str] = []
    starred = False
    for each in parameters:
        if each.kind is each.KEYWORD_ONLY and not starred:
            texts.append("*")
        starred = starred or each.kind in (each.KEYWORD_ONLY, each.VAR_POSITIONAL)
        texts.append(_parameter(each))
    arrow = "" if inspect.isclass(function) else _arrow(signature.return_annotation)
    line = f"{name}({', '.join(texts)}){arrow}"
    if len(line) > 96:
        line = f"{name}(\n" + "".join(f"    {text},\n" for text in texts) + f"){arrow}"
    return f"```python\n{line}\n```"


def _parameter(each: inspect.Parameter) -> str:
    star = {each.VAR_POSITIONAL: "*", each.VAR_KEYWORD: "**"}.get(each.kind, "")
    annotation = "" if each.annotation is each.empty else f": {_type(each.annotation)}"
    default = "" if each.default is each.empty else f" = {each.default!r}" if annotation else f"={each.default!r}"
    return f"{star}{each.name}{annotation}{default}"


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
    """Return the `Literal` aliases of weft's modules by name."""
    return {
        name: str(value).replace("typing.", "")
        for module in [module for key, module in sys.modules.items() if key.startswith("weft.")]
        for name, value in vars(module).items()
        if get_origin(value) is Literal
    }


def _is_error(name: str) -> bool:
    member = getattr(weft, name)
    return inspect.isclass(member) and issubclass(member, BaseException)


def _depth(name: str) -> tuple[bool, int, str]:
    kind = getattr(weft, name)
    return issubclass(kind, Warning), len(kind.__mro__), name


def _is_alias(member: Any) -> bool:
    return get_origin(member) is not None or isinstance(member, UnionType)


def _summary(name: str) -> str:
    member = getattr(weft, name)
    docstring = _alias_text(name) if _is_alias(member) else inspect.getdoc(member) or ""
    first = docstring.partition("\n\n")[0].replace("\n", " ")
    return _GUIDE.sub("", first).strip().replace(" .", ".")


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def _code(text: str) -> str:
    return f"`{text}`".replace("|", "\\|")
