"""Forms in which things have other names."""

from __future__ import annotations

from collections.abc import Callable

from attack.forms.sample import Form, Sample, defined, rename_nodes, replace_nodes, with_model

GENERATED = ("s_input_0", "%0", "0", "v0", "t0", "arena", "x0", "input0", "output", "i0", "lane", "main", "n")
HOSTILE = ("a/b", "..", "a\nb", "{}", "%s", '"', "'", "\\", "a b", "<b>", "$(x)", "None", "-1", "//", "*/", "\t")


def unnamed_nodes(sample: Sample) -> Sample | None:
    result = with_model(sample)
    for node in result.model.graph.node:
        node.name = ""
    return result


def one_node_name(sample: Sample) -> Sample | None:
    """All nodes have one name, which a value has too."""
    result = with_model(sample)
    for node in result.model.graph.node:
        node.name = result.model.graph.output[0].name
    return result


def _cycle(names: tuple[str, ...]) -> Callable[[int], str]:
    return lambda number: names[number % len(names)] + "_" * (number // len(names))


def values(name: Callable[[int], str]) -> Form:
    """All values and nodes have names that are made from numbers."""

    def form(sample: Sample) -> Sample | None:
        graph = sample.model.graph
        old = dict.fromkeys([*(value.name for value in graph.input), *defined(graph.node)])
        names = {value: name(number) for number, value in enumerate(old)}
        result = with_model(
            sample,
            inputs={names[key]: value for key, value in sample.inputs.items()},
            expected={names[key]: value for key, value in sample.expected.items()},
            origins={names[key]: key for key in sample.expected},
        )
        graph = result.model.graph
        replace_nodes(graph, rename_nodes(graph.node, names))
        for value in (*graph.input, *graph.output, *graph.value_info):
            value.name = names.get(value.name, value.name)
        for number, node in enumerate(graph.node):
            node.name = name(number)
        graph.name = name(0)
        return result

    return form


unicode_names = values(lambda number: f"größe→{number}·\N{GREEK SMALL LETTER ALPHA}\N{GRINNING FACE}")
long_names = values(lambda number: "n" * 5000 + str(number))
generated_names = values(_cycle(GENERATED))
hostile_names = values(_cycle(HOSTILE))
