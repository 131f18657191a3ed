"""Ways to write the same model: pure functions from a sample to a sample, one idea each.

`EXACT` forms must give the plain form's bits. Others may be compiled in another way, so what they give lies within the
case's own tolerance of what its authors expect.
"""

from __future__ import annotations

from attack.forms import calls, constants, control, naming, neighbours, schemas, shapes
from attack.forms.sample import Form, Sample


def chain(*forms: Form) -> Form:
    """One form after another."""

    def form(sample: Sample) -> Sample | None:
        result: Sample | None = sample
        for apply in forms:
            result = None if result is None else apply(result)
        return result

    return form


EXACT: dict[str, Form] = {
    "one thread": calls.option(threads=1),
    "four threads": calls.option(threads=4),
    "cached": calls.cached,
    "kept on the device": calls.kept_on_device,
    "asked otherwise": calls.asked_otherwise,
    "odd arrays": calls.odd_arrays,
    "unnamed nodes": naming.unnamed_nodes,
    "one node name": naming.one_node_name,
    "unicode names": naming.unicode_names,
    "long names": naming.long_names,
    "generated names": naming.generated_names,
    "hostile names": naming.hostile_names,
}

CLOSE: dict[str, Form] = {
    "strict": calls.option(precision="strict"),
    "speed": calls.option(prefer="speed"),
    "asked one by one": calls.asked_one_by_one,
    "turned outputs": calls.turned_outputs,
    "distinct sizes": shapes.distinct,
    "distinct input sizes": shapes.inputs_only,
    "shared sizes": shapes.shared,
    "batch": shapes.first_axis,
    "odd size names": shapes.odd_names,
    "open sizes": shapes.open_sizes,
    "open ranks": shapes.open_ranks,
    "other sizes first": shapes.other_sizes_first,
    "initializers": constants.all_initializers,
    **{f"initializer {position}": constants.only(position) for position in range(8)},
    "weights": constants.all_but_first,
    "known integers": constants.integers,
    "sizes from shapes": constants.from_shapes,
    "constant nodes": constants.constant_nodes,
    "defaults": constants.defaults_used,
    "overridden defaults": constants.defaults_overridden,
    "after identity": neighbours.before(neighbours.identity),
    "after two negations": neighbours.before(neighbours.twice_negative),
    "after two transposes": neighbours.before(neighbours.twice_transposed),
    "after reshapes": neighbours.before(neighbours.flattened),
    "after split and concat": neighbours.before(neighbours.in_two_parts),
    "after a sequence": neighbours.before(neighbours.through_sequence),
    "after an optional": neighbours.before(neighbours.through_optional),
    "after a product": neighbours.before(neighbours.through_product),
    "before identity": neighbours.after(neighbours.same),
    "before adding zero": neighbours.after(neighbours.added_zero),
    "before relu": neighbours.after(neighbours.rectified),
    "before casts": neighbours.after(neighbours.there_and_back),
    "before concat and slice": neighbours.after(neighbours.doubled_and_cut),
    "before transpose": neighbours.after(neighbours.turned),
    "before reshape": neighbours.after(neighbours.flat),
    "before maximum": neighbours.after(neighbours.largest),
    "before gather": neighbours.after(neighbours.backward_rows),
    "before pad and slice": neighbours.after(neighbours.padded_and_cut),
    "before where": neighbours.after(neighbours.chosen),
    "before a product": neighbours.after(neighbours.multiplied),
    "before a sequence": neighbours.after(neighbours.sequenced),
    "output and transposed": neighbours.after(neighbours.turned, keep=True),
    "then": control.branch(True),
    "else": control.branch(False),
    "known branch": control.known_branch,
    "loop state": control.loop_state,
    "loop rows": control.loop_rows,
    "scan": control.scan,
    "function": control.function,
    "function in function": control.function_in_function,
    "twice": control.twice,
    "inputs too": control.inputs_too,
    "every value": control.every_value,
    "newest opset": schemas.newest_opset,
    "oldest opset": schemas.oldest_opset,
    "empty names": schemas.empty_names,
    "required outputs": schemas.required_outputs,
    "last output": schemas.last_output,
}

TOGETHER: dict[str, Form] = {
    f"{first}, {second}": chain(CLOSE[first], CLOSE[second])
    for first, second in [
        ("distinct sizes", "weights"),
        ("distinct sizes", "known integers"),
        ("distinct sizes", "sizes from shapes"),
        ("distinct sizes", "before maximum"),
        ("distinct sizes", "before a product"),
        ("distinct sizes", "after a product"),
        ("distinct sizes", "loop rows"),
        ("open sizes", "scan"),
        ("open ranks", "known integers"),
        ("open ranks", "sizes from shapes"),
        ("after a product", "before a product"),
        ("distinct sizes", "initializer 1"),
        ("distinct sizes", "before transpose"),
        ("distinct sizes", "then"),
        ("distinct sizes", "loop state"),
        ("distinct sizes", "twice"),
        ("open sizes", "after two transposes"),
        ("open sizes", "before concat and slice"),
        ("open sizes", "initializer 0"),
        ("open ranks", "weights"),
        ("open ranks", "before casts"),
        ("open ranks", "then"),
        ("open ranks", "initializer 1"),
        ("shared sizes", "function"),
        ("initializers", "then"),
        ("initializers", "before transpose"),
        ("batch", "weights"),
    ]
}
TOGETHER["distinct sizes, after reshapes by shape"] = chain(
    CLOSE["distinct sizes"], neighbours.before(neighbours.flattened_by_shape)
)
TOGETHER["open ranks, after reshapes by shape"] = chain(
    CLOSE["open ranks"], neighbours.before(neighbours.flattened_by_shape)
)

FORMS: dict[str, Form] = {**EXACT, **CLOSE, **TOGETHER}
COMPILED = ("one thread", "four threads", "cached", "strict", "speed")  # what means nothing where nothing is compiled
