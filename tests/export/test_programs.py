"""Test exported models in C and C++ programs, with strict warnings and a sanitizer."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from export import networks
from export.shared_library import COMPILER

import weft
from weft.cli import main
from weft.export.export import Exported, export_c

needs_compiler = pytest.mark.skipif(COMPILER is None, reason="there is no C compiler (cc)")
STRICT = ("-std=c99", "-Wall", "-Wextra", "-Wpedantic", "-Werror")
LIBC = {"malloc", "free", "fopen", "fread", "fgetc", "fclose", "memmove", "memcpy", "memset"}


def _compile(*arguments: str, folder: Path) -> None:
    assert COMPILER is not None
    done = subprocess.run([COMPILER, *arguments], cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def _can_sanitize(folder: Path) -> bool:
    (folder / "empty.c").write_text("int main(void) { return 0; }\n")
    command = [COMPILER or "cc", "-fsanitize=address,undefined", "empty.c", "-o", "empty"]
    return subprocess.run(command, cwd=folder, capture_output=True, check=False).returncode == 0


@needs_compiler
def test_the_example_runs_under_a_sanitizer(tmp_path: Path) -> None:
    source = networks.recurrent()
    export_c(source, tmp_path, name="network")
    sanitizer = ("-g", "-fsanitize=address,undefined", "-fno-sanitize-recover") if _can_sanitize(tmp_path) else ()
    _compile(*STRICT, *sanitizer, "network_example.c", "network.o", "-o", "example", folder=tmp_path)
    inputs = {
        "x": np.random.default_rng(1).normal(0, 1, (7, 2, 5)).astype(np.float32),
        "lengths": np.array([7, 4], np.int32),
    }
    for name, array in inputs.items():
        array.tofile(tmp_path / f"{name}_in.raw")
    command = ["./example", "network.weights", "7", "2", "x_in.raw", "lengths_in.raw", "--write"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    expected = weft.load(source, device="cpu", threads=1, cache=False).run(inputs)
    for name, array in expected.items():
        assert (tmp_path / f"{name}.raw").read_bytes() == np.asarray(array).tobytes(), name
    refused = subprocess.run(
        [*command[:2], "0", *command[3:]], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert refused.returncode == 1
    assert "time is not within" in refused.stderr


@needs_compiler
def test_two_models_in_one_c_plus_plus_program(tmp_path: Path) -> None:
    compiler = shutil.which("c++")
    if compiler is None:
        pytest.skip("there is no C++ compiler (c++)")
    export_c(networks.convnet(), tmp_path, name="first")
    export_c(networks.convnet(), tmp_path, name="second", embed=True)
    (tmp_path / "both.cpp").write_text(
        """
#include "first.h"
#include "second.h"
#include <cstring>
#include <vector>
int main() {
    first_model one;
    second_model other;
    if (first_open(&one, "first.weights") || second_open(&other, nullptr)) return 1;
    first_sizes sizes = {2};
    second_sizes same = {2};
    std::vector<float> x(2 * 3 * 24 * 20, 0.5f), y(14), z(14);
    first_inputs in = {x.data()};
    second_inputs also = {x.data()};
    first_outputs out = {y.data()};
    second_outputs too = {z.data()};
    std::vector<unsigned char> space(first_workspace_bytes(&sizes));
    if (first_run(&one, &sizes, &in, &out, space.data(), space.size())) return 2;
    if (second_run(&other, &same, &also, &too, space.data(), space.size())) return 3;
    first_close(&one);
    second_close(&other);
    return std::memcmp(y.data(), z.data(), 14 * sizeof(float)) ? 4 : 0;
}
"""
    )
    command = [compiler, "-Wall", "-Wextra", "-Werror", "both.cpp", "-L.", "-lfirst", "-lsecond", "-o", "both"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert subprocess.run(["./both"], cwd=tmp_path, check=False).returncode == 0


@needs_compiler
def test_the_object_needs_only_libc(tmp_path: Path) -> None:
    if shutil.which("nm") is None:
        pytest.skip("there is no nm")
    for number, build in enumerate((networks.transformer, networks.quantized_convnet, networks.branches)):
        files = export_c(build(), tmp_path, name=f"network{number}")
        missing = subprocess.run(["nm", "-u", files.object], capture_output=True, text=True, check=True).stdout
        assert {line.split()[-1] for line in missing.splitlines()} <= LIBC
        symbols = subprocess.run(["nm", "-g", files.object], capture_output=True, text=True, check=True).stdout
        defined = {line.split()[-1] for line in symbols.splitlines() if " T " in line}
        assert all(symbol.startswith(f"network{number}_") for symbol in defined)
        assert f"network{number}_run" in defined


def test_code_for_another_architecture(tmp_path: Path) -> None:
    files = export_c(networks.recurrent(), tmp_path, name="network", target="aarch64")
    assert files.object.read_bytes()[:20] == b"\x7fELF\x02\x01\x01" + bytes(9) + b"\x01\x00\xb7\x00"
    compiler, emulator = shutil.which("aarch64-linux-gnu-gcc"), shutil.which("qemu-aarch64")
    if compiler is None or emulator is None:
        return
    command = [compiler, "-static", "network_example.c", "network.o", "-o", "example"]
    subprocess.run(command, cwd=tmp_path, check=True)
    x = np.random.default_rng(1).normal(0, 1, (5, 2, 5)).astype(np.float32)
    lengths = np.array([5, 3], np.int32)
    x.tofile(tmp_path / "x_in.raw")
    lengths.tofile(tmp_path / "lengths_in.raw")
    run = [emulator, "./example", "network.weights", "5", "2", "x_in.raw", "lengths_in.raw", "--write"]
    subprocess.run(run, cwd=tmp_path, check=True, capture_output=True)
    expected = weft.load(networks.recurrent(), device="cpu", cache=False).run({"x": x, "lengths": lengths})
    for name, array in expected.items():
        result = np.fromfile(tmp_path / f"{name}.raw", np.float32).reshape(array.shape)
        np.testing.assert_allclose(result, array, rtol=1e-5, atol=1e-5)


def test_the_header_documents_everything(tmp_path: Path) -> None:
    files: Exported = export_c(networks.guards(), tmp_path, name="network")
    text = files.header.read_text()
    for part in (
        "int64_t n;",
        "int64_t m;",
        "const float *a; /* float32[n, 4] */",
        "struct { int64_t count;",
        "They must satisfy",
    ):
        assert part in text, part
    assert "cc -O2 network_example.c network.o" in text


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = tmp_path / "my-model.onnx"
    model.write_bytes(networks.convnet())
    assert main(["export", str(model), "--c", str(tmp_path / "c"), "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert record["name"] == "my_model"
    assert record["sizes"] == {"batch": "batch"}
    assert sorted(Path(file).name for file in record["files"]) == sorted(
        path.name for path in (tmp_path / "c").iterdir()
    )
    assert main(["export", str(model), "-o", str(tmp_path / "d"), "--shape", "batch=2", "--name", "net"]) == 0
    assert "net.h" in capsys.readouterr().out
    assert main(["export", str(model), "--c", str(tmp_path / "f"), "--only", "c", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["outputs"] == {"c": "float32[batch, 16, 12, 10]"}
    assert main(["export", str(model), "--c", str(tmp_path / "e"), "--shape", "size=2"]) == 1
    assert "no dynamic dim" in capsys.readouterr().err
