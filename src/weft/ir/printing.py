"""Print graphs and sections as text, for `--dump` and `weft kernels`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from weft.ir.dims import Dim
from weft.ir.graph import Attribute, Graph, GraphValue, Node, OnnxModel
from weft.ir.program import Value
from weft.ir.work import HostSection, Launch, NativeSection, Reference, ScanTask, Section, Task, Work

LONGEST_ATTRIBUTE = 60
LONGEST_EXPRESSION = 60


def format_model(model: OnnxModel) -> str:
    """Format the nodes of a model in order, with the names, types and sizes of their values."""
    opsets = ", ".join(f"{domain or 'ai.onnx'} {version}" for domain, version in model.opsets.items())
    return "\n".join([f"{model.file}: {model.producer or 'no producer'}, {opsets}", *_graph_lines(model.graph, "")])


def _graph_lines(graph: Graph, indent: str) -> Iterator[str]:
    yield f"{indent}graph {graph.name}({', '.join(map(_declaration, graph.inputs))})"
    for value in graph.defaults:
        yield f"{indent}  default {_declaration(value)}"
    for name, array in graph.initializers.items():
        yield f"{indent}  weight {name}: {array.dtype}{list(array.shape)}"
    for node in graph.nodes:
        yield f"{indent}  {node}{_attribute_list(node)}  # {node.name}"
        for attribute in node.attributes.values():
            for inner in attribute if isinstance(attribute, tuple) else (attribute,):
                if isinstance(inner, Graph):
                    yield from _graph_lines(inner, indent + "    ")
    yield f"{indent}  return {', '.join(map(_declaration, graph.outputs))}"


def _declaration(value: GraphValue) -> str:
    name = f"{value.name} as {value.shows}" if value.shows else value.name
    return name if value.type is None else f"{name}: {value.type}"


def _attribute_list(node: Node) -> str:
    shown = [f"{name}={_attribute_text(content)}" for name, content in node.attributes.items()]
    return f" {{{', '.join(shown)}}}" if shown else ""


def _attribute_text(content: Attribute) -> str:
    match content:
        case np.ndarray():
            return f"{content.dtype}{list(content.shape)}"
        case Graph():
            return f"graph {content.name}"
        case tuple() if any(isinstance(part, (Graph, np.ndarray)) for part in content):
            return f"({', '.join(map(_attribute_text, content))})"
        case _:
            text = repr(content) if isinstance(content, str) else str(content)
            return text if len(text) <= LONGEST_ATTRIBUTE else f"{text[:LONGEST_ATTRIBUTE]}…"


def format_sections(sections: Sequence[Section]) -> str:
    """Format tasks with their templates and the reasons for these, and the kernels that they launch."""
    return "\n".join(_section_lines(sections, ""))


def _section_lines(sections: Iterable[Section], indent: str) -> Iterator[str]:
    for section in sections:
        match section:
            case NativeSection(tasks, aliases):
                yield f"{indent}native: {_values(section.inputs)} -> {_values(section.outputs)}"
                for task in tasks:
                    yield from _task_lines(task, indent + "  ")
                for value, base in aliases.items():
                    yield f"{indent}  {value} shares the memory of {base}"
            case HostSection(steps, bodies):
                yield f"{indent}host:"
                for step in steps:
                    name = type(step.primitive).__name__.lower()
                    yield f"{indent}  {_values(step.results)} = {name}({_values(step.operands)})  # {step.origin}"
                for body in bodies:
                    yield f"{indent}  body:"
                    yield from _section_lines(body, indent + "    ")


def _task_lines(task: Task | ScanTask, indent: str) -> Iterator[str]:
    if isinstance(task, ScanTask):
        yield f"{indent}{_values(task.results)} = scan({_values(task.operands)})  # {task.origin}"
        yield from _section_lines((task.body,), indent + "  ")
        return
    yield f"{indent}{_values(task.results)} = {task.template or 'kernels'}({_values(task.operands)})  # {task.origin}"
    if task.reason:
        yield f"{indent}  because {task.reason}"
    yield f"{indent}  at least {task.effort.flops} operations, {task.effort.bytes} bytes"
    yield from _work_lines(task.work, indent + "  ")


def _work_lines(work: Work, indent: str) -> Iterator[str]:
    for number, workspace in enumerate(work.workspaces):
        yield f"{indent}workspace {number}: {workspace.size} of {workspace.dtype}"
    for launch in work.launches:
        yield f"{indent}{launch.kernel.name} on {_truncate(launch.blocks)} blocks of {launch.kernel.lanes} lanes"
        yield f"{indent}  {_arguments(launch)}"


def _arguments(launch: Launch) -> str:
    memory = [f"{name} = {_reference_text(reference)}" for name, reference in launch.buffers]
    return ", ".join([*memory, *(f"{name} = {_truncate(value)}" for name, value in launch.parameters)])


def _truncate(value: Dim) -> str:
    text = str(value)
    return text if len(text) <= LONGEST_EXPRESSION else f"{text[:LONGEST_EXPRESSION]}…"


def _reference_text(reference: Reference) -> str:
    return reference.kind if reference.kind == "errors" else f"{reference.kind} {reference.number}"


def _values(values: Iterable[Value]) -> str:
    return ", ".join(f"{value}: {value.type}" for value in values)
