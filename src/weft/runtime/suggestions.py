"""Errors for names and arguments of other libraries, which suggest what to write in weft instead."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from difflib import get_close_matches
from typing import Any

from weft.errors import InputError, MissingAttributeError, UnknownOptionError, short_repr

_MOST_NAMES = 4  # inputs in an example of a call

_RUN = "write `{run}`, which returns outputs by name, or `{call}`"
_DEVICE = 'the model on another device is `model.on(device)`, by a name of `weft.devices()`; "auto" is the best one'
_SIZES = "sizes may change from run to run; a dynamic dim has a name in `model.inputs`"


def _table(*rows: tuple[str, str]) -> dict[str, str]:
    """Make a dict from rows of space-separated names and their hint."""
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
    ("get_overridable_initializers", "inputs with a default are `model.defaults`"),
    ("get_providers providers get_provider_options", "write `model.device`; `model.report()` explains the choice"),
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
        "it is compiled already; `model.warm_all()` compiles it for all devices that it may run on",
    ),
    ("quantize", "write `weft.quantize(source, path, to=...)`"),
    ("shape dtype ndim", "write `model.inputs[0].shape`, `model.inputs[0].dtype`"),
    ("name path filename model_path", "it is `model.file`; the graph's name is in `model.metadata`"),
)
"""Hints by attribute of a model; `{run}` and `{call}` become examples with the model's inputs."""

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
"""Hints by attribute of `weft`."""

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
"""Hints by argument of `weft.load`."""

RUNNING = _table(
    ("input_feed feed feed_dict feeds data args x", "write `{run}`"),
    ("output_names fetches outs", 'write outputs=["…"], with names of outputs'),
    ("run_options options", "a run takes timeout=, cancel=, keep= and into="),
    ("out output output_arrays", "write into={{name: array}}"),
    ("device", _DEVICE),
    ("batch_size", _SIZES),
)
"""Hints by argument of `run`."""


def example(names: Sequence[str]) -> str:
    """Write a call of `run` with inputs of these names."""
    entries = [f'"{name}": array' for name in names[:_MOST_NAMES]]
    return f"model.run({{{', '.join([*entries, '…'] if len(names) > len(entries) else entries)}}})"


def examples(names: Sequence[str]) -> dict[str, str]:
    """Write a call by names, and one by position."""
    arguments = ["array" if len(names) == 1 else f"array{number}" for number in range(1, len(names) + 1)]
    if len(arguments) > _MOST_NAMES:
        arguments = [*arguments[:_MOST_NAMES], "…"]
    return {"run": example(names), "call": f"model({', '.join(arguments)})"}


def missing_attribute(owner: Any, name: str, names: Sequence[str], devices: Iterable[str]) -> MissingAttributeError:
    """Make the error for an attribute that a model lacks."""
    hint = ATTRIBUTES.get(name)
    if name in devices:
        hint = f'write `model.on("{name}")`'
    error = MissingAttributeError(
        f"a weft.Model has no attribute {name!r}", hint=None if hint is None else hint.format(**examples(names))
    )
    error.name, error.obj = name, owner
    return error


def missing_name(name: str) -> MissingAttributeError:
    """Make the error for a name that `weft` lacks."""
    return MissingAttributeError(f"module 'weft' has no attribute {name!r}", hint=NAMES.get(name))


def unknown_option(
    function: str,
    keywords: Iterable[str],
    options: Collection[str],
    hints: Mapping[str, str],
    names: Sequence[str] = (),
) -> UnknownOptionError:
    """Make the error for a keyword that a function does not take; `names` are the model's inputs."""
    name = next(name for name in keywords if name not in options)
    close = get_close_matches(name, options, 1)
    hint = hints.get(name)
    if hint is not None:
        hint = hint.format(**examples(names))
    elif name in names:
        hint = f"pass inputs as one dict: {example(names)}"
    else:
        hint = f"write {close[0]}=" if close else f"it takes {', '.join(options)}"
    return UnknownOptionError(f"{function} has no argument {name!r}", hint=hint)


def inputs_without_names(inputs: Any, outputs: Any, names: Sequence[str], file: str) -> InputError:
    """Make the error for inputs that are not a mapping; `outputs` is the second argument of `run`."""
    run = example(names)
    if isinstance(outputs, Mapping):
        return outputs_before_inputs(inputs, names, file)
    kind = f"the string {short_repr(inputs)}" if isinstance(inputs, str) else f"a {type(inputs).__name__}"
    problem = f"inputs must be a dict of arrays by name, not {kind}"
    if not names:
        return InputError(problem, file=file, hint="this model takes none: model.run({})")
    if isinstance(inputs, str) and inputs in names:
        return InputError(problem, file=file, hint=f"write {run}")
    if hasattr(inputs, "columns") and hasattr(inputs, "to_numpy"):
        hint = "pass its columns by name: model.run({name: table[[name]] for name in table.columns})"
        return InputError(problem, file=file, hint=hint)
    by_order = "model(*arrays)" if isinstance(inputs, (list, tuple)) else examples(names)["call"]
    return InputError(problem, file=file, hint=f"write {run}, or call the model with arrays in order: {by_order}")


def outputs_before_inputs(outputs: Any, names: Sequence[str], file: str) -> InputError:
    """Make the error for output names before the inputs, which is onnxruntime's order."""
    output_names = [name for name in outputs if isinstance(name, str)] if isinstance(outputs, (list, tuple)) else []
    option = f', outputs=["{output_names[0]}"{", …" if len(output_names) > 1 else ""}]' if output_names else ""
    hint = f"write {example(names)[:-1]}{option}); it returns a dict of outputs by name"
    return InputError("inputs come first, then the names of outputs", file=file, hint=hint)


def run_option_in_call(option: str, names: Sequence[str], file: str) -> InputError:
    """Make the error for an option of `run` in a call of the model."""
    hint = f"write {example(names)[:-1]}, {option}=…)"
    return InputError(f"a call takes only inputs, and {option} is an option of run", file=file, hint=hint)


def dict_as_argument(names: Sequence[str], file: str) -> InputError:
    """Make the error for a dict of inputs as a positional argument."""
    hint = f"write {example(names)}, or model(**inputs)"
    return InputError("a call takes arrays in order or by name, not a dict of them", file=file, hint=hint)
