"""Directives of shaders, and whether Chromium's compiler accepts shaders: all of them, in one page."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from export import networks
from export.many_kernels import build_model
from models.code_digests import gpu_limits, kernels
from report.browser import browser, find_browser

import weft
from weft.backends.webgpu.bindings import write_module
from weft.backends.webgpu.compile import wgsl_text
from weft.backends.webgpu.emit import emit
from weft.backends.webgpu.gpu import open_gpu
from weft.backends.webgpu.recordings import UNIFORM, WRITE, Dispatch, Recording, ShaderSource
from weft.backends.webgpu.targets import build_target
from weft.backends.webgpu.wgsl_types import Abilities
from weft.ir.dtypes import DType
from weft.ir.kernel import (
    Across,
    AcrossGroup,
    Buffer,
    Call,
    Code,
    Define,
    Fetch,
    Kernel,
    Number,
    Put,
    Register,
    When,
    lane,
)
from weft.kernels.lower.barriers import insert_barriers

F32 = DType.float32
BROWSER = Abilities(int64=False, float64=False, float16=False, subgroups=True, subgroup_directive=True)
PLAIN = Abilities(int64=False, float64=False, float16=False)
HALVES = Abilities(int64=False, float64=False, float16=True)
LANES = 64

COMPILE_ALL = """(async () => {
  const adapter = await navigator.gpu?.requestAdapter();
  if (!adapter) return 'there is no WebGPU adapter';
  const features = ['subgroups', 'shader-f16'].filter((name) => adapter.features.has(name));
  const device = await adapter.requestDevice({requiredFeatures: features});
  const refused = {};
  for (const [name, code] of Object.entries(shaders)) {
    if (code.includes('enable f16;') && !features.includes('shader-f16')) continue;
    if (code.includes('enable subgroups;') && !features.includes('subgroups')) continue;
    const module = device.createShaderModule({code});
    const {messages} = await module.getCompilationInfo();
    const errors = messages.filter((message) => message.type == 'error').map((message) => message.message);
    if (errors.length) refused[name] = errors;
  }
  return refused;
})()"""


def shaders(model: bytes, abilities: Abilities) -> Iterator[tuple[str, str]]:
    program = weft.load(model, device="reference", cache=False).program
    for kernel in kernels(program, build_target(gpu_limits(False), abilities)):
        yield kernel.name, wgsl_text(kernel, abilities)


def copy_kernel(dtype: DType) -> Kernel:
    put = Put("out", lane(LANES), Fetch("in", lane(LANES), dtype))
    return Kernel("copy", (Buffer("in", dtype, False), Buffer("out", dtype, True)), (), LANES, (put,))


def test_f16_is_enabled_only_where_a_shader_has_it() -> None:
    half, single = (wgsl_text(copy_kernel(dtype), HALVES) for dtype in (DType.float16, F32))
    assert half.startswith("enable f16;\n")
    assert "f16" not in single
    assert "f16" not in wgsl_text(copy_kernel(DType.float16), PLAIN)
    texts = [text for _, text in shaders(networks.transformer(networks.HALF), HALVES)]
    for text in texts:
        directive = text.startswith("enable f16;\n")
        assert directive == bool(re.search(r"\bf16\b", text.removeprefix("enable f16;")))
    assert {text.startswith("enable f16;\n") for text in texts} == {True, False}


def test_subgroups_are_enabled_only_where_a_shader_uses_them() -> None:
    put = Put("out", lane(LANES), Across("sum", Fetch("in", lane(LANES), F32)))
    sums = Kernel("sums", (Buffer("in", F32, False), Buffer("out", F32, True)), (), LANES, (put,))
    assert wgsl_text(sums, BROWSER).startswith("enable subgroups;\n")
    assert "subgroup" not in wgsl_text(copy_kernel(F32), BROWSER)
    native = Abilities(int64=True, float64=True, float16=True, subgroups=True)
    assert "subgroupShuffleXor" in wgsl_text(sums, native)
    assert "enable" not in wgsl_text(sums, native)  # naga knows no such directive


def conditional_kernel() -> Kernel:
    """A reduction behind a condition on data, which is uniform, but not to a compiler."""

    def exceeds(value: Code, limit: float) -> Code:
        return Call("greater", (value, Number(limit, F32)), DType.bool)

    total = Register("total", F32, False)
    body = (
        Define("total", Across("sum", Fetch("in", lane(LANES), F32)), False),
        When(
            exceeds(total, 0.0),
            (Put("out", lane(LANES), Across("maximum", Fetch("in", lane(LANES), F32))),),
            (Put("out", lane(LANES), total),),
        ),
    )
    return insert_barriers(Kernel("branch", (Buffer("in", F32, False), Buffer("out", F32, True)), (), LANES, body))


def group_kernel() -> Kernel:
    sums = tuple(AcrossGroup("sum", Fetch("in", lane(LANES), F32), 8, step) for step in (1, 8))
    body = tuple(Put("out", lane(LANES) + number * LANES, total) for number, total in enumerate(sums))
    return Kernel("groups", (Buffer("in", F32, False), Buffer("out", F32, True)), (), LANES, body)


@pytest.mark.parametrize("sign", [1, -1])
def test_reductions_behind_conditions_on_data(sign: int) -> None:
    gpu = open_gpu("llvmpipe")
    kernel = conditional_kernel()
    text = write_module(kernel, emit(kernel, gpu.abilities), {}, gpu.abilities)
    pipeline = gpu.pipelines({"branch": ShaderSource(text, (UNIFORM, WRITE, WRITE))})["branch"]
    values = sign * np.arange(1, LANES + 1, dtype=np.float32)
    memory, out, parameters = gpu.buffer(4 * LANES), gpu.buffer(4 * LANES), gpu.uniform(256)
    gpu.write(memory, 0, values)
    gpu.write(parameters, 0, np.array([1, 0, 0], np.int32))
    places = [(parameters, 0, 256), (memory, 0, 4 * LANES), (out, 0, 4 * LANES)]
    group = gpu.bind_group(pipeline, places)
    actual = gpu.run(Recording([Dispatch(pipeline, group, 1)]), [(out, 0, 4 * LANES)])[0].view(np.float32)
    np.testing.assert_array_equal(actual, np.full(LANES, values.max() if sign > 0 else values.sum()))


def test_chromium_accepts_shaders(tmp_path: Path) -> None:
    command = find_browser()
    if command is None:
        pytest.skip("no chromium here (on Debian: apt-get install chromium)")
    models = {
        "convnet": networks.convnet(),
        "transformer": networks.transformer(),
        "half": networks.transformer(networks.HALF),
        "recurrent": networks.recurrent(),
        "quantized": networks.quantized_convnet(),
        "scatter": networks.scatter(),
    }
    texts = {}
    for kind, abilities in {"browser": BROWSER, "plain": PLAIN, "halves": HALVES}.items():
        for kernel in (conditional_kernel(), group_kernel()):
            texts[f"{kind}/{kernel.name}"] = wgsl_text(kernel, abilities)
        for name, model in models.items():
            texts.update({f"{kind}/{name}/{kernel}": text for kernel, text in shaders(model, abilities)})
    texts.update({f"browser/many/{kernel}": text for kernel, text in shaders(build_model(), BROWSER)})
    page = tmp_path / "page.html"
    page.write_text(f"<script>const shaders = {json.dumps(texts)};</script>", encoding="utf-8")
    with browser(command, tmp_path / "profile", ("--enable-unsafe-webgpu",)) as chromium:
        chromium.open(page, 400, 300)
        refused = chromium.evaluate(COMPILE_ALL)
    if isinstance(refused, str):
        pytest.skip(f"{refused} in {command}")
    assert refused == {}
