"""GPUs, threads, forks and signals: first use by many threads, and clear errors in a forked child."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest
from test_processes import needs_fork, run_script

NAME = "webgpu:llvmpipe"


def test_first_use_by_many_threads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without XDG_RUNTIME_DIR, which is set for drivers only, not in os.environ."""
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    script = f"""
sys.setswitchinterval(1e-6)
barrier, results, seen = threading.Barrier(6), [], []
def work():
    barrier.wait()
    model = weft.load(layers(1), device={NAME!r})
    results.append(digest(model.run({{"x": feed(1)}})["y"]))
threads = [threading.Thread(target=work) for _ in range(6)]
[thread.start() for thread in threads]
while any(thread.is_alive() for thread in threads):
    seen.append("XDG_RUNTIME_DIR" in os.environ)
    time.sleep(0.001)
print(len(results), len(set(results)), any(seen))
"""
    assert run_script(script, tmp_path) == "6 1 False"


@needs_fork
def test_forked_child_gets_an_error(tmp_path: Path) -> None:
    """In the child of a process that uses a GPU, GPU use is an error, the host works, and it exits normally."""
    script = f"""
model = weft.load(layers(1), device={NAME!r})
kept = model.run({{"x": feed(1)}}, keep=True)["y"]
before = digest(kept.numpy())
child = os.fork()
if child == 0:
    attempts = [lambda: model.run({{"x": feed(1)}}), kept.numpy, lambda: model.to_device(feed(1)),
                lambda: weft.load(layers(2), device={NAME!r}, cache=False)]
    told = 0
    for attempt in attempts:
        try:
            attempt()
        except weft.DeviceError as error:
            told += "forked" in str(error)
    host = weft.load(layers(1), device="cpu").run({{"x": feed(1)}})
    reason = [device.description for device in weft.devices() if device.name == "webgpu"]
    del model, kept
    gc.collect()
    sys.exit(10 * told + len(reason))
status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
print(status, digest(model.run({{"x": feed(1)}})["y"]) == before)
"""
    assert run_script(script, tmp_path) == "41 True"


@needs_fork
def test_auto_falls_back_to_the_host_in_a_forked_child(tmp_path: Path) -> None:
    """With a warning, for models loaded before and after the fork."""
    script = """
import dataclasses, warnings
from weft.backends.webgpu import adapters as module
from weft.backends.webgpu import device
real = module.adapters
found = tuple(dataclasses.replace(adapter, kind="discrete") for adapter in real())
module.adapters = lambda: found
device._GPU_FILES = ("null",)  # as if there were a GPU
os.environ["WEFT_PICK"] = "order"
model = weft.load(layers(1), device="auto")
assert model.device == "webgpu:0", model.device
model.run({"x": feed(1)})
child = os.fork()
if child == 0:
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        host = digest(weft.load(layers(1), device="cpu").run({"x": feed(1)})["y"])
        moved = digest(model.run({"x": feed(1)})["y"])
        fresh = weft.load(layers(1), device="auto", cache=False)
        same = {host, moved, digest(fresh.run({"x": feed(1)})["y"])}
    kinds = [warning.category.__name__ for warning in told]
    good = len(same) == 1 and model.device == fresh.device == "cpu" and kinds == ["FallbackWarning"] * 2
    print(same, kinds, model.device, fresh.device) if not good else None
    sys.exit(not good)
print(os.waitpid(child, 0)[1])
"""
    assert run_script(script, tmp_path) == "0"


def test_ctrl_c_ends_the_wait_for_a_gpu(tmp_path: Path) -> None:
    script = f"""
import signal
signal.signal(signal.SIGINT, signal.default_int_handler)
model = weft.load(layers(1, 4, 128, 128), device={NAME!r})
array = feed(1, 128, 128)
before = digest(model.run({{"x": array}})["y"])
for delay in (0.02, 0.05, 0.1, 0.1):
    caught = threading.Event()
    thread = threading.Thread(target=press_ctrl_c, args=(delay, caught))
    try:
        thread.start()
        while True:
            assert digest(model.run({{"x": array}})["y"]) == before
    except KeyboardInterrupt:
        caught.set()
        thread.join()
print(digest(model.run({{"x": array}})["y"]) == before)
"""
    assert run_script(script, tmp_path) == "True"


def test_environment_is_unchanged() -> None:
    from weft.backends.webgpu.adapters import adapters

    before = dict(os.environ)
    adapters.cache_clear()
    threads = [threading.Thread(target=adapters) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert dict(os.environ) == before
