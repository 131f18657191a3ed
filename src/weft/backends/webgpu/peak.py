"""Measure a GPU's peak rates: multiply-adds in registers, and reads from memory."""

from __future__ import annotations

from weft.backends.resident.peaks import ROUNDS, best_seconds, measure_once
from weft.backends.webgpu.gpu import Gpu
from weft.backends.webgpu.recordings import READ, WRITE, Dispatch, Recording, ShaderSource
from weft.cost.roofline import Peak

_LANES = 256
_CHAINS = 8  # independent multiply-adds per lane
_TURNS = 256
_MOST_BYTES = 256 << 20  # larger than most caches
_SOFTWARE_BYTES = 32 << 20
_MULTIPLY = f"""
@group(0) @binding(0) var<storage, read_write> x: array<f32>;
@compute @workgroup_size({_LANES}) fn main(@builtin(global_invocation_id) i: vec3<u32>) {{
    let a = vec4<f32>(x[0]);
    let b = vec4<f32>(x[1]);
    {" ".join(f"var s{chain} = vec4<f32>(f32(i.x) + {chain}.0);" for chain in range(_CHAINS))}
    for (var turn = 0; turn < {_TURNS}; turn++) {{
        {" ".join(f"s{chain} = fma(s{chain}, a, b);" for chain in range(_CHAINS))}
    }}
    let s = {" + ".join(f"s{chain}" for chain in range(_CHAINS))};
    if (s.x + s.y + s.z + s.w == 12345.678) {{ x[2] = s.x; }}
}}
"""
_READ = f"""
@group(0) @binding(0) var<storage, read_write> x: array<f32>;
@group(0) @binding(1) var<storage, read> y: array<vec4<f32>>;
@compute @workgroup_size({_LANES})
fn main(@builtin(global_invocation_id) i: vec3<u32>, @builtin(num_workgroups) n: vec3<u32>) {{
    let step = n.x * {_LANES}u;
    let count = arrayLength(&y);
    var s = vec4<f32>(0.0);
    for (var at = i.x; at < count; at += step) {{ s += y[at]; }}
    if (s.x + s.y + s.z + s.w == 12345.678) {{ x[2] = s.x; }}
}}
"""


@measure_once
def measure_peak(gpu: Gpu) -> Peak:
    """Measure the GPU's peak rates by its own clock; DeviceError if it has none."""
    sources = {"peak": ShaderSource(_MULTIPLY, (WRITE,)), "bandwidth": ShaderSource(_READ, (WRITE, READ))}
    pipelines = gpu.pipelines(sources)
    software = gpu.limits.is_software
    size = min(_SOFTWARE_BYTES if software else _MOST_BYTES, gpu.limits.max_binding_bytes) & ~15
    small, large = gpu.buffer(16), gpu.buffer(size)
    groups = 32 if software else 4096
    multiply = gpu.bind_group(pipelines["peak"], [(small, 0, 16)])
    read = gpu.bind_group(pipelines["bandwidth"], [(small, 0, 16), (large, 0, size)])
    multiply_seconds = _measure_seconds(gpu, Dispatch(pipelines["peak"], multiply, groups))
    read_seconds = _measure_seconds(gpu, Dispatch(pipelines["bandwidth"], read, groups))
    return Peak(2 * 4 * _CHAINS * _TURNS * _LANES * groups / multiply_seconds, size / read_seconds)


def _measure_seconds(gpu: Gpu, dispatch: Dispatch) -> float:
    return best_seconds(gpu.time(Recording([dispatch] * ROUNDS)))
