"""What people try who come from other libraries, and what to write here instead.

Nothing of it works: the errors say how the same is done, with the names of the model at hand.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from difflib import get_close_matches
from typing import Any

from weft.errors import InputError, MissingAttributeError, UnknownOptionError, shown

_MOST_NAMES = 4  # of inputs, in an example of a call

_RUN = "write `{run}`, which gives outputs by name, or `{call}`"
_DEVICE = 'the model on another device is `model.on(device)`, by a name of `weft.devices()`; "auto" is the best one'
_SIZES = "sizes may change from run to run; a dynamic dim has a name in `model.inputs`"


def _table(*rows: tuple[str, str]) -> dict[str, str]:
    """A hint for each of the names in a row."""
    return {name: hint for names, hint in rows for name in names.split()}


ATTRIBUTES = _table(
    (
        "get_inputs input input_details get_input_details input_info signatures",
        "it is `model.inputs`: specs with a name, dtype and shape",
    ),
    (
        "get_outputs output output_details get_output_details output_info",
        "it is `model.outputs`: specs with a name, dtype and shape",
    ),
    ("input_names get_input_names input_name", "write `[spec.name for spec in model.inputs]`"),
    ("output_names get_output_names output_name", "write `[spec.name for spec in model.outputs]`"),
    ("input_shape input_shapes input_dtype", "write `model.inputs[0].shape`, `model.inputs[0].dtype`"),
    ("get_modelmeta modelmeta metadata_props get_rt_info producer_name", "it is `model.metadata`"),
    ("get_overridable_initializers", "inputs that need not be given are `model.defaults`"),
    ("get_providers providers get_provider_options", "`model.device` serves; `model.report()` says why"),
    ("set_providers to set_device", _DEVICE),
    ("get_session_options session_options", "options are arguments of `weft.load`"),
    (
        "predict forward infer inference invoke execute predict_proba transform apply evaluate generate call run_model",
        _RUN,
    ),
    (
        "predict_on_batch infer_new_request decision_function set_tensor get_tensor set_input_tensor allocate_tensors",
        _RUN,
    ),
    (
        "io_binding run_with_iobinding run_with_ort_values bind_input bind_output",
        "write `model.run(inputs, into={{name: array}})`; keep=True leaves outputs on the device",
    ),
    ("create_infer_request start_async arun async_run infer_async", "write `await model.run_async(inputs)`"),
    (
        "eval train requires_grad_ freeze fit backward no_grad",
        "leave it out: a model only computes its outputs",
    ),
    (
        "half float double bfloat16 float16 type",
        'weights keep their types; `weft.load(source, precision="fast")` lets products round their operands',
    ),
    (
        "parameters named_parameters state_dict load_state_dict get_weights load_weights initializers buffers",
        "weights by name are `model.weights`; `model.set_weights({{name: array}})` changes them",
    ),
    ("reshape resize_tensor_input resize_input set_batch_size", _SIZES),
    (
        "end_profiling start_profiling get_profiling_start_time_ns",
        "write `model.profile()`, or `weft profile MODEL` in a terminal",
    ),
    ("benchmark timeit time measure", "write `model.bench()`, or `weft bench MODEL` in a terminal"),
    ("random_inputs dummy_inputs example_inputs sample_inputs", "write `weft.random_inputs(model)`"),
    ("summary describe info", "write `print(model)`, or `weft info MODEL` in a terminal"),
    (
        "graph nodes opset_import layers modules children",
        "the graph is `model.source.graph`, opsets are in `model.metadata`",
    ),
    ("SerializeToString export serialize dump to_onnx save_model", "write `model.save(path)`"),
    ("close release unload", "memory is freed with the last reference: `del model`"),
    ("threads num_threads intra_op_num_threads set_num_threads", "write `weft.load(source, threads=4)`"),
    (
        "compile warmup warm_up build optimize",
        "it is compiled already; `model.warm_all()` does it for all devices that it may run on",
    ),
    ("quantize", "write `weft.quantize(source, path, to=...)`"),
    ("shape dtype ndim", "write `model.inputs[0].shape`, `model.inputs[0].dtype`"),
    ("name path filename model_path", "it is `model.file`; the graph's name is in `model.metadata`"),
)
"""By the attribute of a model that is tried; `{run}` and `{call}` are examples with its own names."""

NAMES = _table(
    (
        "InferenceSession Session ONNXModel load_model read_model compile_model Core Runtime Engine open from_file",
        'write `model = weft.load("model.onnx")`; `weft.compat.onnxruntime` has the names of onnxruntime',
    ),
    (
        "SessionOptions RunOptions OrtValue IOBinding GraphOptimizationLevel ExecutionMode NodeArg set_seed",
        "it is in `weft.compat.onnxruntime`; options here are arguments of `weft.load` and `run`",
    ),
    ("get_available_providers get_all_providers get_device list_devices available_devices", "write `weft.devices()`"),
    ("run infer predict", "a model is loaded first: `weft.load(source).run(inputs)`"),
    ("from_numpy tensor array from_dlpack", "models take arrays as they are; `weft.to_device` puts one on a device"),
    ("set_num_threads", "write `weft.load(source, threads=4)`"),
    ("dummy_inputs example_inputs random_input", "write `weft.random_inputs(model)`"),
    ("profile benchmark", "a model is loaded first: `weft.load(source).profile()`, or `.bench()`"),
    ("quantize_dynamic quantize_static", "write `weft.quantize(source, path, to=...)`"),
    ("save", "a loaded model is written by `model.save(path)`"),
)
"""By the name that is looked for in `weft`."""

LOADING = _table(
    (
        "providers provider provider_options execution_provider backend device_name device_id gpu use_gpu",
        "device= names what to run on, or lists what to try in order; see weft.devices()",
    ),
    (
        "sess_options session_options options config graph_optimization_level",
        "options are arguments of their own: device, threads, precision, memory_limit, …",
    ),
    ("num_threads intra_op_num_threads inter_op_num_threads n_threads nthreads num_workers", "write threads="),
    ("dtype fp16 half use_fp16 torch_dtype", 'precision="fast" lets products round their operands'),
    ("map_location", "write device="),
    ("input_shapes shapes input_shape dynamic_axes batch_size", "sizes may change from run to run: leave it out"),
    ("cache_dir cache_folder", "the folder is WEFT_CACHE of the environment; cache=False keeps nothing"),
    ("profile enable_profiling", "write model.profile() afterwards"),
    ("output_names", "write outputs="),
    ("external_data weights weights_path", "files of weights are found beside the model"),
)
"""By the argument of `weft.load` that is tried."""

RUNNING = _table(
    ("input_feed feed feed_dict feeds data args x", "write `{run}`"),
    ("output_names fetches outs", 'write outputs=["…"], with names of outputs'),
    ("run_options options", "a run takes timeout=, cancel=, keep= and into="),
    ("out output output_arrays", "write into={{name: array}}"),
    ("device", _DEVICE),
    ("batch_size", _SIZES),
)
"""By the argument of `run` that is tried."""


def example(names: Sequence[str]) -> str:
    """A call of `run` with inputs of these names."""
    few = [f'"{name}": array' for name in names[:_MOST_NAMES]]
    return f"model.run({{{', '.join([*few, '…'] if len(names) > len(few) else few)}}})"


def examples(names: Sequence[str]) -> dict[str, str]:
    """A call by names, and one by position."""
    few = ["array" if len(names) == 1 else f"array{number}" for number in range(1, len(names) + 1)]
    if len(few) > _MOST_NAMES:
        few = [*few[:_MOST_NAMES], "…"]
    return {"run": example(names), "call": f"model({', '.join(few)})"}


def missing_attribute(owner: Any, name: str, names: Sequence[str], devices: Iterable[str]) -> MissingAttributeError:
    """The error for an attribute that a model lacks."""
    hint = ATTRIBUTES.get(name)
    if name in devices:
        hint = f'the model there is `model.on("{name}")`'
    error = MissingAttributeError(
        f"a weft.Model has no attribute {name!r}", hint=None if hint is None else hint.format(**examples(names))
    )
    error.name, error.obj = name, owner
    return error


def missing_name(module: Any, name: str) -> MissingAttributeError:
    """The error for a name that `weft` lacks."""
    error = MissingAttributeError(f"module 'weft' has no attribute {name!r}", hint=NAMES.get(name))
    error.name, error.obj = name, module
    return error


def unknown_option(
    function: str, given: Iterable[str], known: Collection[str], habits: Mapping[str, str], names: Sequence[str] = ()
) -> UnknownOptionError:
    """The error for arguments by names that a function does not take."""
    name = next(name for name in given if name not in known)
    close = get_close_matches(name, known, 1)
    hint = habits.get(name)
    if hint is not None:
        hint = hint.format(**examples(names))
    elif name in names:
        hint = f"inputs come as one dict: {example(names)}"
    else:
        hint = f"write {close[0]}=" if close else f"it takes {', '.join(known)}"
    return UnknownOptionError(f"{function} has no argument {name!r}", hint=hint)


def not_by_name(given: Any, second: Any, names: Sequence[str], file: str) -> InputError:
    """The error for inputs that are not a mapping; `second` is what came after them."""
    run = example(names)
    if isinstance(second, Mapping):
        return names_first(given, names, file)
    kind = f"the string {shown(given)}" if isinstance(given, str) else f"a {type(given).__name__}"
    problem = f"inputs must be a dict of arrays by name, not {kind}"
    if not names:
        return InputError(problem, file=file, hint="this model takes none: model.run({})")
    if isinstance(given, str) and given in names:
        return InputError(problem, file=file, hint=f"write {run}")
    if hasattr(given, "columns") and hasattr(given, "to_numpy"):
        hint = "pass its columns by name: model.run({name: table[[name]] for name in table.columns})"
        return InputError(problem, file=file, hint=hint)
    by_order = "model(*arrays)" if isinstance(given, (list, tuple)) else examples(names)["call"]
    return InputError(problem, file=file, hint=f"write {run}, or call the model with arrays in order: {by_order}")


def names_first(given: Any, names: Sequence[str], file: str) -> InputError:
    """The error for names of outputs before the inputs, which is the order of onnxruntime."""
    wanted = [name for name in given if isinstance(name, str)] if isinstance(given, (list, tuple)) else []
    chosen = f', outputs=["{wanted[0]}"{", …" if len(wanted) > 1 else ""}]' if wanted else ""
    hint = f"write {example(names)[:-1]}{chosen}); it gives a dict of outputs by name"
    return InputError("inputs come first, then the names of outputs", file=file, hint=hint)


def option_of_run(option: str, names: Sequence[str], file: str) -> InputError:
    """The error for an option of runs in a call, which takes inputs by name."""
    hint = f"write {example(names)[:-1]}, {option}=…)"
    return InputError(f"a call takes inputs alone, and {option} is an option of run", file=file, hint=hint)


def dict_in_order(names: Sequence[str], file: str) -> InputError:
    """The error for a dict of inputs where arrays are taken in order."""
    hint = f"write {example(names)}, or model(**inputs)"
    return InputError("a call takes arrays in order or by name, not a dict of them", file=file, hint=hint)
