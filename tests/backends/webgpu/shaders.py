"""Run scalar expressions of the shader library on arrays: many functions of the same arguments in one shader."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from weft.backends.webgpu.library import Abilities, Library
from weft.backends.webgpu.wgsl_types import list_directives
from weft.ir.dtypes import DType

Array = np.ndarray[Any, Any]
Expression = Callable[[Library, list[str]], str]

ALL = Abilities(int64=True, float64=True, float16=True)
PLAIN = Abilities(int64=False, float64=False, float16=False)
PAIRS = Abilities(int64=False, float64=True, float16=False)
FEATURES = ("shader-f16", "shader-f64", "shader-int64")
GROUP = 64


@functools.cache
def find_device() -> Any:
    """A device with all types, or why there is none."""
    try:
        import wgpu
    except ImportError as error:
        return f"wgpu is not installed: {error}"
    try:
        adapters = wgpu.gpu.enumerate_adapters_sync()
    except Exception as error:
        return f"wgpu does not start: {error}"
    for adapter in adapters:
        if set(FEATURES) <= set(adapter.features):
            limits = {"max-storage-buffer-binding-size": adapter.limits["max-storage-buffer-binding-size"]}
            return adapter.request_device_sync(required_features=list(FEATURES), required_limits=limits)
    return "no adapter has 16-bit floats, 64-bit floats and 64-bit integers"


def device() -> Any:
    found_device = find_device()
    if isinstance(found_device, str):
        pytest.skip(found_device)
    return found_device


@functools.cache
def keeps_subnormals() -> bool:
    """Whether the adapter computes with subnormal numbers of float32; it may take them for 0."""
    number = np.array([1e-40], np.float32)
    kinds = [DType.float32, DType.float32]
    (total,) = run(ALL, [(call("add", kinds, DType.float32), DType.float32)], [number, number], kinds)
    return bool(total[0] == number[0] + number[0])


def comparable(values: Sequence[Array]) -> Array:
    """Tell where all values are numbers that the adapter does not flush to 0."""
    is_kept = np.ones(len(values[0]), bool)
    if not keeps_subnormals():
        for value in values:
            size = np.abs(value.astype(np.float64))
            is_kept &= ~((size > 0) & (size < np.finfo(np.float32).tiny))
    return is_kept


def call(name: str, kinds: Sequence[DType], result: DType) -> Expression:
    """A scalar function of all arguments."""
    return lambda library, arguments: library.call(name, arguments, kinds, result)


def run(
    abilities: Abilities,
    expressions: Sequence[tuple[Expression, DType]],
    arrays: Sequence[Array],
    kinds: Sequence[DType],
) -> list[Array]:
    """Each expression of the arrays' elements, as an array of its type; arrays of one length.

    Arguments come through storage, results go as they are in registers.
    """
    library = Library(abilities)
    count = len(arrays[0])
    results = [result for _, result in expressions]
    lines = [f"let x{number} = {library.loaded(f'in{number}[i]', kind)};" for number, kind in enumerate(kinds)]
    names = [f"x{number}" for number in range(len(kinds))]
    for number, (expression, result) in enumerate(expressions):
        lines.append(f"let z{number} = {expression(library, names)};")
        for word, text in enumerate(_words_of(library, f"z{number}", result)):
            lines.append(f"out[{2 * count * number + word}u + 2u * i] = {text};")
    data = _compute(library, lines, arrays, kinds, "u32", 8 * count * len(expressions))
    words = np.frombuffer(data, np.uint32).reshape(len(expressions), count, 2)
    return [_array_of(words[number], result) for number, result in enumerate(results)]


def run_stored(
    abilities: Abilities, expression: Expression, arrays: Sequence[Array], kinds: Sequence[DType], result: DType
) -> Array:
    """An expression of the arrays' elements, brought to storage."""
    library = Library(abilities)
    count = len(arrays[0])
    lines = [f"let x{number} = {library.loaded(f'in{number}[i]', kind)};" for number, kind in enumerate(kinds)]
    text = expression(library, [f"x{number}" for number in range(len(kinds))])
    lines.append(f"out[i] = {library.stored(text, result)};")
    packed = library.elements_in_word(result) > 1
    size = count * (4 if packed else result.numpy.itemsize)
    data = _compute(library, lines, arrays, kinds, library.storage_type(result), size)[:size]
    if packed:
        words = np.frombuffer(data, np.uint32)
        assert words.max() < 1 << (8 * result.numpy.itemsize)
        data = words.astype(f"u{result.numpy.itemsize}").tobytes()
    return np.frombuffer(data, result.numpy)


def _words_of(library: Library, name: str, dtype: DType) -> list[str]:
    """The bits of a register, the low word first."""
    match library.register_type(dtype):
        case "bool":
            return [f"u32({name})"]
        case "vec2<u32>":
            return [f"{name}.x", f"{name}.y"]
        case "i64" | "u64" | "f64" if library.abilities.int64:
            return [f"u32(bitcast<u64>({name}))", f"u32(bitcast<u64>({name}) >> 32u)"]
        case "f64":
            raise AssertionError("the bits of float64 need 64-bit integers: use run_stored")
    return [f"bitcast<u32>({name})"]


def _array_of(words: Array, dtype: DType) -> Array:
    """Registers as an array of their type; floats that are held by float32 come as float32."""
    if dtype is DType.bool:
        return words[:, 0] != 0
    if (dtype.is_integer and dtype.bits == 64) or dtype is DType.float64:
        return np.ascontiguousarray(words).view(dtype.numpy)[:, 0]
    if dtype.is_float:
        return np.ascontiguousarray(words[:, 0]).view(np.float32)
    numbers = words[:, 0].view(np.int32) if dtype.is_signed else words[:, 0]
    low, high = dtype.limits
    assert numbers.min() >= low
    assert numbers.max() <= high
    return numbers.astype(np.int64).astype(dtype.numpy)


def _compute(
    library: Library, lines: Sequence[str], arrays: Sequence[Array], kinds: Sequence[DType], out: str, size: int
) -> bytes:
    declared = []
    for number, kind in enumerate(kinds):
        place = f"@group(0) @binding({number}) var<storage, read>"
        declared.append(f"{place} in{number}: array<{library.storage_type(kind)}>;")
    declared.append(f"@group(0) @binding({len(kinds)}) var<storage, read_write> out: array<{out}>;")
    count = len(arrays[0])
    body = "\n    ".join(lines)
    main = f"""
@compute @workgroup_size({GROUP})
fn main(@builtin(global_invocation_id) id: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>) {{
    let i = id.x + id.y * groups.x * {GROUP}u;
    if i >= {count}u {{
        return;
    }}
    {body}
}}
"""
    text = "\n".join([library.prelude(), *declared, main])
    source = "\n".join([*list_directives(text, library.abilities), text])
    inputs = [_storage(library, array, kind) for array, kind in zip(arrays, kinds)]
    return _dispatch(source, inputs, -(-size // 4) * 4, -(-count // GROUP))


def _storage(library: Library, array: Array, kind: DType) -> bytes:
    """What a storage buffer holds; elements that could share a word have one of their own, with dirt above it."""
    if library.elements_in_word(kind) == 1:
        return array.tobytes() + b"\0" * (-array.nbytes % 4)
    words = array.view(f"u{kind.numpy.itemsize}").astype(np.uint32)
    return (words | np.uint32(0xA5A5A5A5 << (8 * kind.numpy.itemsize) & 0xFFFFFFFF)).tobytes()


def _dispatch(source: str, inputs: Sequence[bytes], size: int, groups: int) -> bytes:
    gpu = device()
    import wgpu

    module = gpu.create_shader_module(code=source)
    pipeline = gpu.create_compute_pipeline(layout="auto", compute={"module": module, "entry_point": "main"})
    usage = wgpu.BufferUsage.STORAGE
    buffers = [gpu.create_buffer_with_data(data=data, usage=usage) for data in inputs]
    buffers.append(gpu.create_buffer(size=size, usage=usage | wgpu.BufferUsage.COPY_SRC))
    entries = [{"binding": number, "resource": {"buffer": buffer}} for number, buffer in enumerate(buffers)]
    group = gpu.create_bind_group(layout=pipeline.get_bind_group_layout(0), entries=entries)
    encoder = gpu.create_command_encoder()
    compute = encoder.begin_compute_pass()
    compute.set_pipeline(pipeline)
    compute.set_bind_group(0, group)
    compute.dispatch_workgroups(min(groups, 32768), -(-groups // 32768))
    compute.end()
    gpu.queue.submit([encoder.finish()])
    return bytes(gpu.queue.read_buffer(buffers[-1]))
