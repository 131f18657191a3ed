"""Model files that change, caches of other users, changed op definitions: correct results or a clear error."""

from __future__ import annotations

import gc
import io
import mmap
import os
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FunctionType
from typing import Any

import numpy as np
import pytest
from attack.devices import missing
from attack.disk_models import LARGE, SMALL, Numbers, data_of, ids, numbers, proto, run, save
from attack.families import disk

import weft
from weft.backends.cpu.peak import known_peak
from weft.cache import code, digests, entries
from weft.cache import files as own_files
from weft.cache.code import CodeCache
from weft.cache.models import ModelCache
from weft.frontend import files
from weft.frontend.files import OpenFile, open_path, private_copy
from weft.opset import foreign, registry

POSIX = pytest.mark.skipif(not hasattr(os, "getuid"), reason="made for systems with user ids")
ROOT = pytest.mark.skipif(not hasattr(os, "getuid") or os.getuid() != 0, reason="only root gives files away")
OTHER = 54321


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv(own_files.VARIABLE, str(tmp_path / "cache"))
    monkeypatch.setattr(entries, "package_digest", lambda: "this version")
    monkeypatch.setattr(own_files, "CHECK_INTERVAL", 0.0)
    own_files._warned.clear()
    code.shared_cache.cache_clear()
    yield tmp_path / "cache"
    code.shared_cache.cache_clear()


@pytest.fixture(params=["cpu", "webgpu:0", "reference"])
def device(request: pytest.FixtureRequest) -> str:
    if request.param.startswith("webgpu") and (reason := missing(request.param)):
        pytest.skip(reason)
    name: str = request.param
    return name


def check(actual: Any, content: Numbers) -> None:
    np.testing.assert_array_equal(actual, content.result(ids()))


def in_child(body: str, *arguments: object) -> str:
    """Run a program in a child, so that a crash fails one test only; return its output."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [sys.executable, "-c", body, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment, check=False)
    assert done.returncode == 0, (done.returncode, done.stderr)
    return done.stdout


# -- models and their files ------------------------------------------------------------------------------------------

CHANGED = """
import os, sys
from pathlib import Path
import weft
from attack.disk_models import *
device, cache, external, size, how, path = sys.argv[1:]
path, old, new = Path(path), numbers(1, int(size)), numbers(2, int(size))
for turn in range(2):
    save(old, path, external == "True")
    model = weft.load(path, device=device, cache=cache == "True")
    if how == "truncated":
        os.truncate(data_of(path) if external == "True" else path, 10)
    else:
        save(new, path, external == "True")
    assert not compare_result(run(model), old).is_finding, "the model changed with its file"
    try:
        assert not compare_result(run(model, outputs=["y"]), old).is_finding, "a part of it changed with its file"
    except weft.ChangedFileError as error:
        print(error)
    if how != "truncated":
        model = weft.load(path, device=device, cache=cache == "True")
        assert not compare_result(run(model), new).is_finding, "old weights"
"""


@pytest.mark.parametrize("how", ["truncated", "overwritten"])
@pytest.mark.parametrize(
    ("where", "cached", "external", "size"),
    [
        ("cpu", True, False, LARGE),
        ("cpu", False, False, LARGE),
        ("cpu", True, True, LARGE),
        ("cpu", True, False, SMALL),
        ("webgpu:0", True, False, LARGE),
        ("webgpu:0", False, True, LARGE),
        ("reference", False, True, LARGE),
    ],
)
def test_model_file_changes_after_loading(
    tmp_path: Path, where: str, cached: bool, external: bool, size: int, how: str
) -> None:
    if where.startswith("webgpu") and (reason := missing(where)):
        pytest.skip(reason)
    output = in_child(CHANGED, where, cached, external, size, how, tmp_path / "m.onnx")
    if where != "reference" and size == LARGE:  # of which no copy is kept
        assert "m.onnx: the file has changed" in output or "m.data has changed" in output or "bytes" in output


def test_model_file_is_removed_after_loading(tmp_path: Path) -> None:
    content, path = numbers(1, LARGE), tmp_path / "m.onnx"
    save(content, path, external=False)
    model = weft.load(path, device="cpu")
    path.unlink()
    check(run(model, outputs=["y"]), content)
    assert [node.op for node in model.source.graph.nodes] == ["Gather", "MatMul", "Add", "Neg"]


def test_missing_external_data_is_reported(tmp_path: Path) -> None:
    content, path = numbers(1, LARGE), tmp_path / "m.onnx"
    save(content, path, external=True)
    model = weft.load(path, device="cpu")
    data_of(path).unlink()
    check(run(model), content)
    with pytest.raises(weft.ChangedFileError, match=r"m\.data.*is missing"):
        run(model, outputs=["y"])


def sources() -> dict[str, Callable[[bytearray, Path], tuple[Any, Callable[[], object]]]]:
    def clear(memory: Any) -> Callable[[], object]:
        return lambda: memory.__setitem__(slice(None), bytes(len(memory)))

    def mapped(data: bytearray, path: Path) -> tuple[Any, Callable[[], object]]:
        with path.open("r+b") as file:
            memory = mmap.mmap(file.fileno(), 0)
        return memory, clear(memory)

    def stream(data: bytearray, path: Path) -> tuple[Any, Callable[[], object]]:
        return path.open("rb"), lambda: path.write_bytes(bytes(len(data)))

    return {
        "bytearray": lambda data, _: (data, clear(data)),
        "memoryview": lambda data, _: (memoryview(data), clear(data)),
        "map": mapped,
        "stream": stream,
    }


@pytest.mark.parametrize("kind", sources())
@pytest.mark.parametrize("cached", [True, False])
def test_source_may_change_after_loading(tmp_path: Path, device: str, kind: str, cached: bool) -> None:
    content = numbers(3, SMALL)
    data = bytearray(proto(content).SerializeToString())
    (tmp_path / "m.onnx").write_bytes(data)
    source, change = sources()[kind](data, tmp_path / "m.onnx")
    model = weft.load(source, device=device, cache=cached)
    change()
    check(run(model), content)
    check(run(model, outputs=["y"]), content)


@POSIX
@pytest.mark.parametrize("what", ["pipe", "folder", "zero", "null", "empty", "loop", "nothing", "socket"])
@pytest.mark.parametrize("external", [False, True])
def test_special_files_are_refused_at_once(tmp_path: Path, what: str, external: bool) -> None:
    payload = {"kind": "place", "what": what, "seed": 1, "large": False, "external": external, "cache": True}
    case = disk.Case(payload, "reference", tmp_path)
    with pytest.raises(weft.ModelError, match=r"model\.(onnx|data)"):
        disk.place(case)


@POSIX
def test_models_from_pipes(tmp_path: Path) -> None:
    content = numbers(4, SMALL)
    reading, writing = os.pipe()
    with os.fdopen(writing, "wb") as file:
        file.write(proto(content).SerializeToString())
    if not Path(f"/dev/fd/{reading}").exists():
        pytest.skip("no /dev/fd here")
    check(run(weft.load(f"/dev/fd/{reading}", device="reference")), content)
    os.close(reading)


# -- private copies --------------------------------------------------------------------------------------------------


def opened(path: Path) -> OpenFile:
    file = open_path(path, str(path))
    assert isinstance(file, OpenFile)
    return file


@pytest.mark.parametrize("size", [0, 5, files.SMALL, files.SMALL + 1, 3 * files.CHUNK + 7])
@pytest.mark.parametrize("within", [True, False])
def test_private_copies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int, within: bool) -> None:
    if not within:
        monkeypatch.delattr(os, "copy_file_range", raising=False)
        monkeypatch.delattr(os, "preadv", raising=False)
    data = np.random.default_rng(size).bytes(size)
    path = tmp_path / "file"
    path.write_bytes(data)
    copy = private_copy(opened(path), [tmp_path])
    path.write_bytes(bytes(size))
    assert copy == data
    assert copy.readonly
    assert isinstance(copy.obj, mmap.mmap) == (size > files.SMALL)
    assert list(tmp_path.iterdir()) == [path]  # the copy has no name


def test_copies_fall_back_to_memory_when_disks_are_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(range(256)) * 5000)
    for breaking in ("room", "writing"):
        with monkeypatch.context() as broken:
            if breaking == "room":
                broken.setattr("shutil.disk_usage", lambda _: type("Usage", (), {"free": 0})())
            else:
                broken.setattr(files, "_copy_to_disk", lambda *_: (_ for _ in ()).throw(OSError(28, "full")))
            copy = private_copy(opened(path), [tmp_path])
        assert isinstance(copy.obj, bytearray)
        assert copy == path.read_bytes()


def test_file_that_is_being_written_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(100))
    copying = files._copy

    def slowly(file: OpenFile, folders: Any) -> memoryview:
        with path.open("ab") as growing:
            growing.write(b"more")
        return copying(file, folders)

    monkeypatch.setattr(files, "_copy", slowly)
    monkeypatch.setattr(files, "PAUSE", 0.0)
    with pytest.raises(weft.ModelError, match="is being written to"):
        private_copy(opened(path))


def test_file_changes_during_the_load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between hashing the content and copying it."""
    path, old, new = tmp_path / "m.onnx", numbers(1, SMALL), numbers(2, SMALL)
    save(old, path, external=False)
    looked = digests.digest

    def look(content: Any) -> str:
        name = looked(content)
        if isinstance(content, OpenFile):
            save(new, path, external=False)
        return name

    with monkeypatch.context() as changing:
        changing.setattr(digests, "digest", look)
        with pytest.raises(weft.ChangedFileError, match="has changed"):
            weft.load(path, device="cpu")
    save(old, path, external=False)
    check(run(weft.load(path, device="cpu")), old)
    save(new, path, external=False)
    check(run(weft.load(path, device="cpu")), new)


def test_writes_through_a_mapping_are_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Even if they do not change the file's times."""
    monkeypatch.setattr(digests, "SETTLED", 0.05)
    path = tmp_path / "m.onnx"
    contents = [numbers(seed, LARGE) for seed in range(4)]
    save(contents[0], path, external=False)
    with path.open("r+b") as file, mmap.mmap(file.fileno(), 0) as memory:
        for content in (*contents, *contents):
            memory[:] = proto(content).SerializeToString()
            for _ in range(2):
                time.sleep(0.06)
                check(run(weft.load(path, device="cpu")), content)


def test_only_file_systems_that_record_every_write_are_trusted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"x")
    file = opened(path)
    for kind, options, telling in (("ext4", "", True), ("tmpfs", "", False), ("overlay", ",volatile", False)):
        mounts = ["17 1 0:2 / /x rw - xfs none rw", f"7 1 0:1 / / rw shared:1 - {kind} none rw{options}"]
        facts = ["pos:\t0", "mnt_id:\t7"]
        proc_files = {f"/proc/self/fdinfo/{file.descriptor}": facts, "/proc/self/mountinfo": mounts}
        monkeypatch.setattr(digests, "_lines", proc_files.__getitem__)
        assert digests.has_reliable_times(file) == telling
    monkeypatch.setattr(digests, "_lines", lambda _: [])
    assert not digests.has_reliable_times(file)


# -- caches of others ------------------------------------------------------------------------------------------------


@POSIX
@pytest.mark.parametrize("what", disk.STRANGERS)
@pytest.mark.parametrize("where", ["cpu", "webgpu:0"])
def test_cache_entries_writable_by_others_are_ignored(tmp_path: Path, what: str, where: str) -> None:
    """An entry with other weights and valid checksums; one warning is raised."""
    if reason := where.startswith("webgpu") and missing(where):
        pytest.skip(reason)
    if what.startswith("owner") and os.getuid() != 0:
        pytest.skip("only root gives files away")
    payload = {"kind": "stranger", "what": what, "seed": 1, "large": False, "external": False, "cache": True}
    verdict = disk.stranger(disk.Case(payload, where, tmp_path))
    assert verdict.kind == "right", verdict.detail


@POSIX
def test_cache_entries_of_the_user_are_used(tmp_path: Path) -> None:
    """The same forged entry, with the user's permissions: the test above would notice it."""
    payload = {"kind": "stranger", "what": "nothing", "seed": 1, "large": False, "external": False, "cache": True}
    assert "was run" in disk.stranger(disk.Case(payload, "cpu", tmp_path)).detail


@POSIX
@pytest.mark.parametrize("what", ["folder", "entry"])
def test_cached_code_writable_by_others_is_ignored(tmp_path: Path, what: str) -> None:
    kept_code = CodeCache(tmp_path / "code")
    kept_code.put("a", b"code")
    assert kept_code.get("a") == b"code"
    (entry,) = (tmp_path / "code").iterdir()
    (entry if what == "entry" else tmp_path / "code").chmod(0o777)
    with pytest.warns(weft.CacheWarning, match="other users may write"):
        assert kept_code.get("a") is None
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert kept_code.get("a") is None
        kept_code.put("a", b"other")


@POSIX
def test_parent_folders_writable_by_others(tmp_path: Path) -> None:
    def usable(place: Path) -> bool:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return own_files.is_private(place)

    folder = tmp_path / "one" / "two"
    own_files.make_folder(folder)
    assert usable(folder)
    (tmp_path / "one").chmod(0o777)
    assert not usable(folder)
    (tmp_path / "one").chmod(0o1777)  # as /tmp is: what is in it stays its owner's
    assert usable(folder)
    assert not usable(tmp_path / "one")
    (tmp_path / "link").symlink_to("one/../one/two")
    assert usable(tmp_path / "link")
    (tmp_path / "loop").symlink_to("loop")
    for place in (tmp_path / "loop", tmp_path / "nowhere", Path(os.devnull)):
        assert not usable(place)
    if os.getuid() == 0:
        os.chown(tmp_path / "link", OTHER, OTHER, follow_symlinks=False)
        assert not usable(tmp_path / "link")
        os.chown(folder, OTHER, OTHER)
        assert not usable(folder)


@POSIX
def test_inaccessible_cache_folder_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As root's folder in a container that runs as another user."""
    own_files.make_folder(tmp_path / "cache" / "models")
    lstat = Path.lstat

    def refuse(path: Path) -> os.stat_result:
        if path.name == "models":
            raise PermissionError(13, "Permission denied", str(path))
        return lstat(path)

    monkeypatch.setattr(Path, "lstat", refuse)
    own_files._checked.clear()
    with pytest.warns(weft.CacheWarning, match=r"cannot read .*cache; set WEFT_CACHE"):
        assert not own_files.is_private(tmp_path / "cache" / "models")


@ROOT
def test_cache_is_not_created_where_others_may_write(tmp_path: Path) -> None:
    (tmp_path / "theirs").mkdir()
    os.chown(tmp_path / "theirs", OTHER, OTHER)
    path = tmp_path / "m.onnx"
    save(numbers(1, SMALL), path, external=False)
    os.environ[own_files.VARIABLE] = str(tmp_path / "theirs" / "cache")
    code.shared_cache.cache_clear()
    with pytest.warns(weft.CacheWarning, match="belongs to another user") as messages:
        models = [weft.load(path, device="cpu") for _ in range(2)]
    for model in models:
        check(run(model), numbers(1, SMALL))
    assert len(messages) == 1
    assert list((tmp_path / "theirs").iterdir()) == []


@POSIX
def test_cache_is_private_for_any_umask(tmp_path: Path, cache: Path) -> None:
    path = tmp_path / "m.onnx"
    save(numbers(1, SMALL), path, external=True)
    known_peak.cache_clear()  # what another test measured is not kept here
    before = os.umask(0)
    try:
        weft.load(path, device="cpu").profile({"ids": ids()}, 1)
    finally:
        os.umask(before)
    entries.await_writes()
    paths = [cache, *cache.rglob("*")]
    assert {place.suffix for place in paths} >= {".model", ".used", ".files", ".weft", ".json"}
    assert [place for place in paths if place.lstat().st_mode & 0o077] == []


@POSIX
def test_entries_are_read_only(tmp_path: Path, cache: Path) -> None:
    path = tmp_path / "m.onnx"
    save(numbers(1, SMALL), path, external=False)
    weft.load(path, device="cpu")
    entries.await_writes()
    (entry,) = (cache / "models").glob("*.model")
    assert entry.stat().st_mode & 0o777 == 0o400


def test_bit_flips_with_unchanged_times_are_noticed(tmp_path: Path, cache: Path) -> None:
    path, content = tmp_path / "m.onnx", numbers(1, SMALL)
    save(content, path, external=False)
    weft.load(path, device="cpu")
    entries.await_writes()
    gc.collect()
    (entry,) = (cache / "models").glob("*.model")
    status = entry.stat()
    entry.chmod(0o600)
    with entry.open("r+b") as file:
        file.seek(4096)
        file.write(b"\xff" * 100)
    os.utime(entry, ns=(status.st_atime_ns, status.st_mtime_ns))
    check(run(weft.load(path, device="cpu")), content)


def test_no_cache_without_a_home_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(own_files.VARIABLE)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(Path, "expanduser", lambda path: path)
    assert own_files.cache_folder() is None
    assert ModelCache(None).get("key") is None


# -- definitions that are not weft's own -----------------------------------------------------------------------------


@pytest.fixture
def definitions(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Any], str | None]]:
    """Return a function that computes the digest of all op definitions, including a user's."""
    assert foreign.foreign_digest() == foreign.foreign_digest() != None  # noqa: E711

    def name(function: Any) -> str | None:
        monkeypatch.setitem(registry._registrations, ("theirs", "Op"), [])
        registry.op("Op", domain="theirs")(function)
        return foreign.foreign_digest()

    yield name
    registry._registrations.pop(("theirs", "Op"), None)


def compiled(text: str, **names: Any) -> Any:
    """Compile a text that defines a function, in its own module."""
    space: dict[str, Any] = {"__name__": "theirs", **names}
    exec(text, space)
    function = space["f"]
    assert isinstance(function, FunctionType)
    function.__annotations__["return"] = "Tensor"
    return function


PAIRS = {
    "body": ("def f(x): return x + 1", "def f(x): return x + 2"),
    "names": ("def f(x): return x.a", "def f(x): return x.b"),
    "inside": ("def f(x): return (lambda y: y + 1)(x)", "def f(x): return (lambda y: y + 2)(x)"),
    "default": ("def f(x, *, k: int = 1): return x", "def f(x, *, k: int = 2): return x"),
    "global": ("V = 1\ndef f(x): return x + V", "V = 2\ndef f(x): return x + V"),
    "type": ("V = 1\ndef f(x): return x + V", "V = 1.0\ndef f(x): return x + V"),
    "table": ("V = {'a': [1]}\ndef f(x): return V", "V = {'a': [2]}\ndef f(x): return V"),
    "array": ("import numpy as np\nV = np.ones(2)\ndef f(x): return V",
              "import numpy as np\nV = np.ones(3)\ndef f(x): return V"),
    "helper": ("def g(): return 1\ndef f(x): return g()", "def g(): return 2\ndef f(x): return g()"),
    "two deep": ("def h(): return 1\ndef g(): return h()\ndef f(x): return g()",
                 "def h(): return 2\ndef g(): return h()\ndef f(x): return g()"),
    "captured": ("def m(c):\n def f(x): return c\n return f\nf = m(1)",
                 "def m(c):\n def f(x): return c\n return f\nf = m(2)"),
    "class": ("class C:\n v = 1\ndef f(x): return C.v", "class C:\n v = 2\ndef f(x): return C.v"),
    "method": ("class C:\n def g(self): return 1\nc = C()\ndef f(x): return c.g()",
               "class C:\n def g(self): return 2\nc = C()\ndef f(x): return c.g()"),
    "state": ("class C: pass\nc = C(); c.v = 1\ndef f(x): return c.v",
              "class C: pass\nc = C(); c.v = 2\ndef f(x): return c.v"),
    "partial": ("import functools\ng = functools.partial(max, 1)\ndef f(x): return g(x)",
                "import functools\ng = functools.partial(max, 2)\ndef f(x): return g(x)"),
    "schema": ("def f(x: Static): return x", "def f(x): return x"),
}  # fmt: skip


@pytest.mark.parametrize("change", PAIRS)
def test_digests_of_definitions_depend_on_their_behaviour(
    definitions: Callable[[Any], str | None], change: str
) -> None:
    one, other = PAIRS[change]
    first = definitions(compiled(one))
    assert first is not None
    assert definitions(compiled(f"\n\n# further down\n{one}")) == first
    assert definitions(compiled(other)) != first


@pytest.mark.parametrize(
    "text",
    [
        "def f(x): return eval('1')",
        "def f(x): return globals()['V']",
        "import os\ndef f(x): return os.environ['V']",
        "def f(x):\n import a_module_that_is_not_here\n return x",
        "import threading\nV = threading.Lock()\ndef f(x): return V",
        "V = open('/dev/null')\ndef f(x): return V",
        "V = iter([1])\ndef f(x): return V",
    ],
)
def test_definitions_without_a_digest(definitions: Callable[[Any], str | None], text: str) -> None:
    assert definitions(compiled(text)) is None


def test_recursive_definitions(definitions: Callable[[Any], str | None]) -> None:
    text = "def g(n): return f(n - 1) if n else V\ndef f(x): return g(x)\nV = [1]\nV.append(V)"
    assert definitions(compiled(text)) == definitions(compiled(text)) is not None


def test_models_with_definitions_without_a_digest_are_not_cached(
    tmp_path: Path, cache: Path, definitions: Callable[[Any], str | None]
) -> None:
    definitions(compiled("def f(x): return eval('1')"))
    path = tmp_path / "m.onnx"
    save(numbers(1, SMALL), path, external=False)
    check(run(weft.load(path, device="cpu")), numbers(1, SMALL))
    assert not (cache / "models").exists()


@pytest.mark.parametrize("what", ["body", "module"])
def test_changed_definition_of_a_user_op(tmp_path: Path, what: str) -> None:
    payload = {"kind": "operator", "what": what, "seed": 1, "large": False, "external": False, "cache": True}
    verdict = disk.operator(disk.Case(payload, "cpu", tmp_path))
    assert verdict.kind == "right", verdict.detail


def test_streams_keep_their_position(tmp_path: Path) -> None:
    content, path = numbers(1, SMALL), tmp_path / "m.onnx"
    save(content, path, external=False)
    with path.open("rb") as stream:
        check(run(weft.load(stream, device="reference")), content)
        assert stream.tell() == 0
    assert isinstance(weft.load(io.BytesIO(path.read_bytes()), device="reference"), weft.Model)
