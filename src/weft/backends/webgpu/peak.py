"""What a GPU can do at most, measured: multiply-adds in registers, and bytes read from memory."""

from __future__ import annotations

from weakref import WeakKeyDictionary

from weft.backends.webgpu.gpu import Gpu
from weft.backends.webgpu.recordings import READ, WRITE, Dispatch, Recording, ShaderSource
from weft.cost.roofline import Peak
from weft.threads import lock

ROUNDS = 5  # of which the best counts
_LANES = 256
_CHAINS = 8  # multiply-adds of a lane that do not wait for each other
_TURNS = 256
_MOST_BYTES = 256 << 20  # read, beyond most caches
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
_known: WeakKeyDictionary[Gpu, Peak] = WeakKeyDictionary()
_measuring = lock()


def known_peak(gpu: Gpu) -> Peak:
    """The GPU's peak, measured when it is first asked for."""
    with _measuring:
        peak = _known.get(gpu)
        if peak is None:
            peak = _known[gpu] = measure_peak(gpu)
        return peak


def measure_peak(gpu: Gpu) -> Peak:
    """The best of a few rounds, by the GPU's own clock; DeviceError where it has none."""
    made = gpu.pipelines({"peak": ShaderSource(_MULTIPLY, (WRITE,)), "bandwidth": ShaderSource(_READ, (WRITE, READ))})
    software = gpu.limits.is_software
    size = min(_SOFTWARE_BYTES if software else _MOST_BYTES, gpu.limits.max_binding_bytes) & ~15
    small, large = gpu.buffer(16), gpu.buffer(size)
    groups = 32 if software else 4096
    few = gpu.bind_group(made["peak"], [(small, 0, 16)])
    all_of_it = gpu.bind_group(made["bandwidth"], [(small, 0, 16), (large, 0, size)])
    products = _best(gpu, Dispatch(made["peak"], few, groups))
    reading = _best(gpu, Dispatch(made["bandwidth"], all_of_it, groups))
    return Peak(2 * 4 * _CHAINS * _TURNS * _LANES * groups / products, size / reading)


def _best(gpu: Gpu, dispatch: Dispatch) -> float:
    """The fewest seconds, those of the first time left out."""
    return max(min(gpu.time(Recording([dispatch] * (ROUNDS + 1)))[1:]), 1e-9)
