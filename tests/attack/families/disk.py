"""Disk faults: files that change after a load, damaged and foreign caches, full disks, kills while writing.

Results are those of what the file holds, bit by bit, or an error of weft's says that it has changed: nothing crashes,
hangs, runs what another user has written, or gives the results of what was there before.
"""

from __future__ import annotations

import ctypes
import gc
import hashlib
import io
import mmap
import os
import random as plain_random
import shutil
import signal
import stat
import struct
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path

import numpy as np
from attack.disk_models import LARGE, SMALL, Numbers, compare_result, data_of, ids, numbers, proto, run, save
from attack.verdict import Payload, Verdict, refused, right, wrong

import weft
from weft.cache import code
from weft.cache import files as own_files
from weft.cache.entries import await_writes

SECONDS = 180.0
SHARE = 12
OTHER_USER = 54321  # the id of another user, who need not exist
GRACE = 80.0  # seconds that a process of ours may take beyond the delay of its end

CHANGES = ("cut", "zero length", "overwrite", "map", "grow", "unlink", "rename", "folder", "pipe", "touch")
DAMAGES = ("cut", "zero length", "flip", "flip unseen", "longer", "folder", "pipe", "link", "remove", "foreign",
           "swap")  # fmt: skip
STRANGERS = ("owner of entry", "writable entry", "owner of folder", "writable folder", "writable parent", "linked")
SOURCES = ("bytearray", "memoryview", "map", "stream", "BytesIO", "ModelProto", "buffered")
PLACES = ("pipe", "folder", "zero", "null", "empty", "loop", "nothing", "socket")
DISKS = ("file limit", "small disk", "folder is a file", "odd name", "no home", "no temporary", "removed", "read only",
         "mask")  # fmt: skip
BODIES = ("body", "default", "keyword", "captured", "global", "helper", "module", "class")


def cases(random: np.random.Generator, device: str) -> Iterator[Payload]:
    kinds = [(kind, what) for kind, whats in KINDS.items() for what in whats]
    for turn in count():
        for place in random.permutation(len(kinds)):
            kind, what = kinds[place]
            yield {
                "name": f"{kind}: {what}",
                "kind": kind,
                "what": what,
                "seed": int(random.integers(2**31)),
                "large": bool(random.integers(2)) if turn else False,
                "external": bool(random.integers(2)),
                "cache": bool(random.integers(4)),
            }


def smaller(payload: Payload) -> Iterator[Payload]:
    for option, plain in (("large", False), ("external", False), ("cache", True)):
        if payload[option] != plain:
            yield {**payload, option: plain}


def attack(payload: Payload, device: str) -> Verdict:
    if not hasattr(os, "getuid") or os.name == "nt":
        return refused("made for POSIX")
    with workshop() as folder:
        return ATTACKS[payload["kind"]](Case(payload, device, folder))


class Case:
    """A model in its own folder, and a random generator."""

    def __init__(self, payload: Payload, device: str, folder: Path) -> None:
        self.what: str = payload["what"]
        self.device, self.folder = device, folder
        self.external: bool = payload["external"]
        self.options = {"device": device, "cache": payload["cache"], "threads": 1}
        self.random = np.random.default_rng(payload["seed"])
        self.size = LARGE if payload["large"] else SMALL
        self.path = folder / "model.onnx"
        self.content = self.another()
        save(self.content, self.path, self.external)

    @property
    def cache(self) -> Path:
        return self.folder / "cache"

    @property
    def weights(self) -> Path:
        """The file that holds them."""
        return data_of(self.path) if self.external else self.path

    def another(self) -> Numbers:
        return numbers(int(self.random.integers(2**31)), self.size)

    def load(self, **options: object) -> weft.Model:
        return weft.load(self.path, **{**self.options, **options})  # type: ignore[arg-type]


@contextmanager
def workshop() -> Iterator[Path]:
    """A folder with a cache in it, which is weft's for a while."""
    before = os.environ.get(own_files.VARIABLE)
    folder = Path(tempfile.mkdtemp(prefix="disk-"))
    use_cache(folder / "cache")
    try:
        yield folder
    finally:
        use_cache(Path(before) if before is not None else None)
        shutil.rmtree(folder, ignore_errors=True)


def use_cache(folder: Path | None) -> None:
    if folder is None:
        os.environ.pop(own_files.VARIABLE, None)
    else:
        os.environ[own_files.VARIABLE] = str(folder)
    code.shared_cache.cache_clear()
    own_files._checked.clear()


# -- files that change under a model ---------------------------------------------------------------------------------


def live(case: Case) -> Verdict:
    """A loaded model keeps running when its file changes; later reads work or fail; a new load sees the change."""
    model = case.load()
    if case.random.integers(2):
        model = case.load()  # from the cache, if there is one
    first = compare_result(run(model), case.content) if case.random.integers(2) else right()
    old, new = case.content, case.another()
    allowed = change(case, case.weights, new)
    again = compare_result(run(model), old)
    if first.is_finding or again.is_finding:
        return wrong(f"a loaded model changed with its file ({first.detail} {again.detail})")
    with suppress(weft.ChangedFileError):
        if compare_result(run(model, outputs=["y"]), old).is_finding:
            return wrong("a part of a model is that of another file")
    del model
    gc.collect()
    try:
        return compare_result(run(case.load()), *allowed)
    except weft.WeftError as error:
        if allowed and case.what not in ("folder", "pipe", "unlink"):
            return wrong(f"a good file is refused: {error}")
        raise


def change(case: Case, path: Path, new: Numbers) -> list[Numbers]:
    """Change a file; return the contents it may then have, none if it is invalid."""
    data, status = path.read_bytes(), path.stat()
    match case.what:
        case "cut":
            os.truncate(path, int(case.random.integers(len(data))))
            return []
        case "zero length":
            os.truncate(path, 0)
            return []
        case "overwrite":
            save(new, case.path, case.external)
            return [new]
        case "map":
            other = case.folder / "other.onnx"
            save(new, other, case.external)
            fresh = (data_of(other) if case.external else other).read_bytes()
            assert len(fresh) == len(data)
            with path.open("r+b") as file, mmap.mmap(file.fileno(), 0) as memory:
                memory[: len(data) // 2] = data[: len(data) // 2]  # so that pages are writable
                compare_result(run(case.load()), case.content)
                memory[:] = fresh
                return [new] if not compare_result(run(case.load()), new).is_finding else []
        case "grow":
            with path.open("ab") as file:
                file.write(bytes(1000))
            return [case.content] if case.external else []
        case "unlink":
            path.unlink()
        case "rename":
            other = case.folder / "other.onnx"
            save(new, other, case.external)
            (data_of(other) if case.external else other).replace(path)
            return [new]
        case "folder":
            path.unlink()
            path.mkdir()
        case "pipe":
            path.unlink()
            os.mkfifo(path)
        case "touch":
            os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns + 1))
            return [case.content]
    return []


def moment(case: Case) -> Verdict:
    """Files that are written while they are read give the old or the new content, or an error."""
    contents = [case.content, case.another()]
    images = []
    for content in contents:
        save(content, case.path, case.external)
        images.append(case.weights.read_bytes())
    ended = threading.Event()
    chance = plain_random.Random(int(case.random.integers(2**31)))

    def write() -> None:
        while not ended.is_set():
            image = chance.choice(images)
            with case.weights.open("r+b") as file:
                if case.what == "cut":
                    file.truncate(chance.randrange(len(image)))
                elif case.what == "torn":
                    file.write(image[: chance.randrange(len(image))])
                    file.flush()
                    time.sleep(chance.random() * 0.02)
                    file.seek(0)
                file.write(image)
            time.sleep(chance.random() * 0.05)

    writer = threading.Thread(target=write)
    writer.start()
    verdict = right()
    try:
        for _ in range(4):
            try:
                result = run(case.load())
            except weft.WeftError:
                continue
            if case.what == "whole" or not is_mixture(result, contents):
                verdict = compare_result(result, *contents) if not verdict.is_finding else verdict
    finally:
        ended.set()
        writer.join()
    if verdict.is_finding:
        return verdict
    last = contents[chance.randrange(2)]
    save(last, case.path, case.external)
    return compare_result(run(case.load()), last)


def is_mixture(result: np.ndarray, contents: list[Numbers]) -> bool:
    """Whether a result is that of a file half of which was written, as it then really was."""
    return result.shape == contents[0].result(ids()).shape and bool(np.isfinite(result).all())


# -- damaged and foreign caches --------------------------------------------------------------------------------------


def entry(case: Case) -> Verdict:
    """A damaged cache file is compiled again."""
    case.options["cache"] = True
    first = compare_result(run(case.load()), case.content)
    gc.collect()
    await_writes()
    files = sorted(path for path in case.cache.rglob("*") if path.is_file())
    for _ in range(1 + int(case.random.integers(3))):
        victim = files[int(case.random.integers(len(files)))]
        damage(case, victim, files)
    own_files._checked.clear()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", weft.CacheWarning)
        second = compare_result(run(case.load()), case.content)
        gc.collect()
        third = compare_result(run(case.load()), case.content)
    return next((verdict for verdict in (first, second, third) if verdict.is_finding), right())


def damage(case: Case, path: Path, files: list[Path]) -> None:
    if not path.is_file() or path.is_symlink():
        return
    data, status = bytearray(path.read_bytes()), path.stat()
    path.chmod(0o600)
    place = int(case.random.integers(max(len(data), 1)))
    match case.what:
        case "cut":
            path.write_bytes(data[:place])
        case "zero length":
            path.write_bytes(b"")
        case "flip" | "flip unseen":
            if data:
                data[place] ^= 1 << int(case.random.integers(8))
            path.write_bytes(data)
            if case.what == "flip unseen":
                os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
        case "longer":
            path.write_bytes(data + bytes(1 + place % 9000))
        case "folder":
            path.unlink()
            path.mkdir()
        case "pipe":
            path.unlink()
            os.mkfifo(path)
        case "link":
            path.unlink()
            path.symlink_to(path if case.random.integers(2) else files[int(case.random.integers(len(files)))])
        case "remove":
            path.unlink()
        case "foreign":
            path.write_bytes(b"something else entirely" * 100)
        case "swap":
            other = files[int(case.random.integers(len(files)))]
            if other.is_file() and not other.is_symlink():
                path.write_bytes(other.read_bytes())


def stranger(case: Case) -> Verdict:
    """Entries with other weights and valid checksums that another user could have written are ignored."""
    if os.getuid() != 0 and case.what.startswith("owner"):
        return refused("only root gives files away")
    case.options["cache"] = True
    model = case.load()
    del model
    gc.collect()
    await_writes()
    entries = sorted((case.cache / "models").glob("*.model"))
    for path in entries:
        poison(path)
    if not entries:
        return wrong("nothing was cached")
    models, moved = case.cache / "models", case.folder / "moved"
    match case.what:
        case "owner of entry":
            os.chown(entries[0], OTHER_USER, OTHER_USER)
        case "writable entry":
            entries[0].chmod(0o666)
        case "owner of folder":
            os.chown(models, OTHER_USER, OTHER_USER)
        case "writable folder":
            models.chmod(0o777)
        case "writable parent":
            case.cache.chmod(0o777)
        case "linked":
            models.rename(moved)
            moved.chmod(0o777)
            models.symlink_to(moved)
    own_files._checked.clear()
    own_files._warned.clear()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        result = run(case.load())
        run(case.load())
    warning_count = sum(issubclass(warning.category, weft.CacheWarning) for warning in caught)
    if compare_result(result, case.content).is_finding:
        return wrong("what another user may have written was run")
    return right() if warning_count == 1 else wrong(f"a foreign cache is reported {warning_count} times")


HEAD = struct.Struct("<8s32s32sQQQ")


def poison(path: Path) -> None:
    """Change the arrays of an entry, and all checksums with them."""
    data = bytearray(path.read_bytes())
    magic, _, _, length, start, size = HEAD.unpack_from(data)
    floats = np.frombuffer(data, np.float32, size // 4, start)
    floats += 1
    chunk = 4 * 1024**2
    end = start + size
    parts = [
        hashlib.sha256(data[place : min(place + chunk, end)]).digest()
        for place in range(start, start + max(size, 1), chunk)
    ]
    arrays = hashlib.sha256(size.to_bytes(8, "little") + b"".join(parts)).digest()
    tail = HEAD.pack(b"", b"", arrays, length, start, size)[40:]
    structure = bytes(data[end : end + length])
    data[: HEAD.size] = magic + hashlib.sha256(path.stem.encode() + tail + structure).digest() + tail
    path.chmod(0o600)
    path.write_bytes(data)
    path.chmod(0o400)


# -- where models come from ------------------------------------------------------------------------------------------


def source(case: Case) -> Verdict:
    """Changing the source object after a load does not change the model."""
    data = bytearray(proto(case.content).SerializeToString())
    path = case.folder / "whole.onnx"
    path.write_bytes(data)
    source_object: object = data
    change_it: Callable[[], object] = lambda: data.__setitem__(slice(None), bytes(len(data)))  # noqa: E731
    match case.what:
        case "memoryview":
            source_object = memoryview(data)
        case "map":
            with path.open("r+b") as file:
                source_object = memory = mmap.mmap(file.fileno(), 0)
            change_it = lambda: memory.__setitem__(slice(None), bytes(len(data)))  # noqa: E731
        case "stream":
            source_object = path.open("rb")
            change_it = lambda: os.truncate(path, 10)  # noqa: E731
        case "BytesIO":
            source_object = stream = io.BytesIO(data)
            change_it = lambda: stream.getbuffer().__setitem__(slice(None), bytes(len(data)))  # noqa: E731
        case "ModelProto":
            source_object = message = proto(case.content)
            change_it = message.Clear
        case "buffered":
            source_object = buffered = path.open("r+b")
            change_it = lambda: (buffered.write(bytes(len(data))), buffered.flush())  # noqa: E731
    model = weft.load(source_object, **case.options)
    change_it()
    if compare_result(run(model), case.content).is_finding:
        return wrong("a model changed with what it was loaded from")
    with suppress(weft.ChangedFileError):
        return compare_result(run(model, outputs=["y"]), case.content)
    return right()


def place(case: Case) -> Verdict:
    """Special files as a model or its data are refused at once."""
    path = case.weights
    path.unlink()
    match case.what:
        case "pipe":
            os.mkfifo(path)
        case "folder":
            path.mkdir()
        case "zero":
            path.symlink_to("/dev/zero")
        case "null":
            path.symlink_to("/dev/null")
        case "empty":
            path.write_bytes(b"")
        case "loop":
            path.symlink_to(path)
        case "socket":
            os.mknod(path, stat.S_IFSOCK | 0o600)
    run(case.load())
    return wrong("what is no file was loaded")


# -- disks -----------------------------------------------------------------------------------------------------------

PROGRAM = """
import os, resource, sys
from attack.disk_models import run
import numpy as np, weft
path, device, cache, limit = sys.argv[1:]
if int(limit):
    resource.setrlimit(resource.RLIMIT_FSIZE, (int(limit), int(limit)))
for _ in range(2):
    try:
        found = run(weft.load(path, device=device, cache=cache == "True", threads=1))
    except weft.WeftError as error:
        print("refused", repr(str(error)))
    else:
        print("ran", found.tobytes().hex())
"""


def surroundings() -> dict[str, str]:
    """This process's environment, for one that finds the same modules."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}


def start(case: Case, limit: int = 0, **environment: str | None) -> subprocess.Popen[str]:
    """A process that loads the model and runs it, twice."""
    changed = {name: value for name, value in {**surroundings(), **environment}.items() if value is not None}
    command = [sys.executable, "-c", PROGRAM, str(case.path), case.device, str(case.options["cache"]), str(limit)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=changed)


def ran(case: Case, process: subprocess.Popen[str]) -> Verdict:
    """Whether it gave the right results and nothing else."""
    output, errors = process.communicate(timeout=GRACE)
    if process.returncode:
        return wrong(f"it ended with {process.returncode}: {errors[-1500:]}")
    expected = f"ran {case.content.result(ids()).tobytes().hex()}"
    other = [line for line in output.splitlines() if line != expected]
    return wrong(other[0][:300]) if other else right()


def disk(case: Case) -> Verdict:
    """Nothing or little can be written: a missing cache costs only time."""
    environment: dict[str, str | None] = {}
    limit = 0
    match case.what:
        case "file limit":
            limit = int(case.random.choice([1, 100, 4096, 20_000, 1 << 20]))
        case "small disk":
            return small_disk(case)
        case "folder is a file":
            case.cache.write_bytes(b"")
        case "odd name":
            environment[own_files.VARIABLE] = str(case.folder / "a \n b\udcff 'ü$(x)' *")
        case "no home":
            environment |= {own_files.VARIABLE: None, "HOME": None, "XDG_CACHE_HOME": str(case.cache)}
        case "no temporary":
            environment |= dict.fromkeys(("TMPDIR", "TEMP", "TMP"), str(case.folder / "nowhere"))
        case "removed":
            model = case.load()
            shutil.rmtree(case.cache, ignore_errors=True)
            if compare_result(run(model), case.content).is_finding:
                return wrong("a model whose cache was removed")
        case "read only":
            case.cache.mkdir(mode=0o500)
        case "mask":
            return mask(case)
    return ran(case, start(case, limit, **environment))


def mask(case: Case) -> Verdict:
    """Whatever a process lets others do with its files: the cache is its user's alone."""
    case.options["cache"] = True
    before = os.umask(0)
    try:
        run(case.load())
        await_writes()
    finally:
        os.umask(before)
    for path in (case.cache, *case.cache.rglob("*")):
        if path.lstat().st_mode & 0o077:
            return wrong(f"{path.name} has the mode {path.lstat().st_mode:o}")
    return right()


def small_disk(case: Case) -> Verdict:
    """A disk of few pages for cache and copies."""
    if sys.platform != "linux":
        return refused("made for Linux")
    place = case.folder / "disk"
    place.mkdir(mode=0o700)
    system = ctypes.CDLL(None, use_errno=True)
    size = int(case.random.choice([16, 64, 256, 1024, 4096]))
    if system.mount(b"none", str(place).encode(), b"tmpfs", 0, f"size={size}k,mode=0700".encode()):
        return refused("no disk can be mounted here")
    try:
        return ran(case, start(case, 0, TMPDIR=str(place), **{own_files.VARIABLE: str(place)}))
    finally:
        system.umount2(str(place).encode(), 2)


def kill(case: Case) -> Verdict:
    """A loading process is killed at a random moment: the next one finds a valid cache."""
    case.options["cache"] = True
    for _ in range(1 + int(case.random.integers(2))):
        process = start(case)
        with suppress(subprocess.TimeoutExpired):
            process.wait(timeout=float(case.random.uniform(0.3, 6.0)))
        process.send_signal(signal.SIGKILL)
        process.communicate()
    first = compare_result(run(case.load()), case.content)
    gc.collect()
    return first if first.is_finding else compare_result(run(case.load()), case.content)


def crowd(case: Case) -> Verdict:
    """Several processes write the same entries at once."""
    case.options["cache"] = True
    verdicts = [ran(case, process) for process in [start(case) for _ in range(3)]]
    return next((verdict for verdict in verdicts if verdict.is_finding), right())


# -- definitions that change -----------------------------------------------------------------------------------------

OPERATOR = """
import sys
import numpy as np
sys.path.insert(0, sys.argv[1])
import theirs
import weft
from onnx import TensorProto, helper
nodes = [helper.make_node("Theirs", ["x"], ["y"], domain="theirs")]
infos = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [3]) for name in "xy"]
graph = helper.make_graph(nodes, "g", infos[:1], infos[1:])
opsets = [helper.make_opsetid("", 17), helper.make_opsetid("theirs", 1)]
model = helper.make_model(graph, opset_imports=opsets, ir_version=8)
print(float(weft.load(model, device=sys.argv[2]).run({"x": np.ones(3, np.float32)})["y"][0]))
"""
DEFINITION = """
import aside
from weft.opset.registry import op
GLOBAL = {global}
class Kind:
    VALUE = {class}
    def get(self):
        return self.VALUE
KIND = Kind()
def helper(default={default}):
    return {helper} + default
def make(captured):
    @op("Theirs", domain="theirs")
    def theirs(x, *, keyword: float = {keyword}) -> 'Tensor':
        return x * ({body} + keyword + captured + GLOBAL + helper() + aside.value() + KIND.get())
make({captured})
"""


def operator(case: Case) -> Verdict:
    """A user op whose definition changes: results are those of the current definition."""
    values = {name: float(case.random.integers(1, 50)) for name in BODIES}
    for _ in range(2):
        text = DEFINITION
        for name, value in values.items():
            text = text.replace(f"{{{name}}}", str(value))
        (case.folder / "theirs.py").write_text(text)
        (case.folder / "aside.py").write_text(f"VALUE = {values['module']}\ndef value():\n    return VALUE\n")
        shutil.rmtree(case.folder / "__pycache__", ignore_errors=True)
        command = [sys.executable, "-B", "-c", OPERATOR, str(case.folder), case.device]
        process = subprocess.run(
            command, capture_output=True, text=True, timeout=GRACE, check=False, env=surroundings()
        )
        if process.returncode:
            return wrong(process.stderr[-1500:])
        if float(process.stdout) != sum(values.values()):
            return wrong(f"{process.stdout.strip()} is not {sum(values.values())}")
        values[case.what] += 1
    return right()


KINDS: dict[str, tuple[str, ...]] = {
    "live": CHANGES,
    "moment": ("cut", "torn", "whole"),
    "entry": DAMAGES,
    "stranger": STRANGERS,
    "source": SOURCES,
    "place": PLACES,
    "disk": DISKS,
    "kill": ("any time",),
    "crowd": ("three",),
    "operator": BODIES,
}
ATTACKS: dict[str, Callable[[Case], Verdict]] = {
    "live": live,
    "moment": moment,
    "entry": entry,
    "stranger": stranger,
    "source": source,
    "place": place,
    "disk": disk,
    "kill": kill,
    "crowd": crowd,
    "operator": operator,
}
