"""A saved file as a model's files: the graph in it, and the programs that were compiled from it.

A program is mapped from a copy in weft's cache, or read into this process's memory, so changes of the file do not
affect loaded models. A program runs only if this user signed it or passed `trusted=True`; the graph can be compiled
without trust.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, cast

from weft.backends.device import LoadingDriver
from weft.cache import serialization
from weft.cache.digests import check_once, key_of
from weft.cache.entries import CachedModel, SavedModelCopy
from weft.cache.memory import ArraysInMemory
from weft.errors import DeviceError, ModelError, OutOfMemoryError, UnsupportedModelError, UntrustedModelError
from weft.frontend.files import OpenFile
from weft.frontend.source import OpenedModel
from weft.runtime.devices import choose, driver
from weft.runtime.model_files import ModelFiles, PortableSource, Read, missing_file
from weft.runtime.options import USUAL_PRECISION
from weft.runtime.policy import is_open
from weft.saved.layout import MEANING, SavedHeader, damaged_error, get_content, read_block, read_blocks, read_header
from weft.saved.manifest import Block, SavedProgram
from weft.saved.signing import is_signed_by_user

if TYPE_CHECKING:
    from weft.ir.graph import OnnxModel
    from weft.runtime.options import LoadOptions, Precision

_COMPILE_AGAIN = "compile the model again on this machine"
_RECOMPILE = "recompile=True compiles the graph in the file for this machine"


def open_saved(
    opened: OpenedModel, read: Read, folder: Path | None, records: Path | None, options: LoadOptions
) -> SavedFiles:
    """Open a saved file; raise a WeftError if it is damaged, or signed by another user and not trusted."""
    header = read_header(get_content(opened), opened.file)
    trusted = options.trusted or is_signed_by_user(header.signed, header.signature)
    if not trusted and not options.recompile:
        graph = f"; {_RECOMPILE}, and runs none of its code" if header.manifest.has_graph else ""
        raise UntrustedModelError(
            "the file holds machine code that this user did not compile",
            file=opened.file,
            hint=f"trusted=True runs it, if you trust its author{graph}",
        )
    return SavedFiles(opened, header, read, folder, records, trusted, options)


def reopen_saved(
    source: PortableSource,
    opened: OpenedModel,
    read: Read,
    folder: Path | None,
    records: Path | None,
    options: LoadOptions,
) -> SavedFiles:
    """Open the saved file of a pickled model; raise ChangedFileError if its content is different."""
    files = open_saved(opened, read, folder, records, options)
    if files.saved_name != source.name:
        raise missing_file(f"{source.path} has other content", source.file)
    return files


class SavedFiles(ModelFiles):
    """The graph of a saved file, and its programs."""

    def __init__(
        self,
        opened: OpenedModel,
        header: SavedHeader,
        read: Read,
        folder: Path | None,
        records: Path | None,
        trusted: bool,
        options: LoadOptions,
    ) -> None:
        self._saved = opened
        self._header = header
        self._trusted = trusted
        self._caches = options.cache
        self._is_checked = False
        self.manifest = header.manifest
        self._can_recompile = options.recompile and header.manifest.has_graph
        super().__init__(_open_graph(opened, header), read, folder, records)
        self._name = header.manifest.model

    def _check_digests(self, already_read: Collection[int] = ()) -> None:
        """Check the digests of all blocks, except for those that were read already, and of the graph: once."""
        with self._lock:
            if self._is_checked:
                return
            content = get_content(self._saved)
            unread = [block for number, block in enumerate(self.manifest.blocks) if number not in already_read]
            unread += [] if self._header.graph is None else [self._header.graph]

            def check() -> None:
                read_blocks(content, [(block, None) for block in unread], self.file)

            if isinstance(content, OpenFile):
                check_once(content, self._saved.path, self._records, self._header.name, check)
            else:
                check()
            self._is_checked = True

    def model(self) -> OnnxModel:
        self._check_graph()
        return super().model()

    @property
    def graph(self) -> OpenedModel:
        """The ONNX model in the file, as a source; ModelError if the file has none."""
        self._check_graph()
        return self.opened

    def _check_graph(self) -> None:
        if not self.manifest.has_graph:
            hint = "compile it with its graph, or load the ONNX file: other shapes, outputs, weights or devices need it"
            raise ModelError("the file was saved without its graph", file=self.file, hint=hint)
        self._check_digests()

    def complete_options(self, options: LoadOptions) -> LoadOptions:
        """Set the options that the caller left open to those of the programs in the file."""
        programs = self._usable_programs()
        if not programs:
            return options
        kinds = list(dict.fromkeys(program.device for program in programs))
        is_only_kind = len(kinds) == 1 and not options.recompile
        available = kinds if is_only_kind else [kind for kind in kinds if _is_available(kind)]
        if is_open(options.device) and (available or not self._can_recompile):
            options = replace(options, device=tuple(available) if len(available) > 1 else (available or kinds)[0])
        if options.precision == USUAL_PRECISION:
            options = replace(options, precision=cast("Precision", programs[0].precision))
        if options.outputs is None and programs[0].outputs is not None:
            options = replace(options, outputs=programs[0].outputs)
        return options

    def _usable_programs(self) -> tuple[SavedProgram, ...]:
        return self.manifest.programs if self._trusted else ()

    def prepared(self, device: LoadingDriver, precision: str, outputs: Sequence[str] | None) -> CachedModel | None:
        """Return the file's best program for a device; None if the graph has to be compiled.

        Raise a WeftError if no program runs on this machine, and there is no graph to compile.
        """
        program = self._choose_program(device, precision, outputs)
        if program is not None:
            return self._load_program(program, device)
        self._check_digests()  # the compiled graph may come from the cache, without a read of the file
        return None

    def _choose_program(
        self, device: LoadingDriver, precision: str, outputs: Sequence[str] | None
    ) -> SavedProgram | None:
        kind = device.name.partition(":")[0]
        names = None if outputs is None else tuple(outputs)
        programs = [
            program
            for program in self._usable_programs()
            if program.device == kind and program.precision == precision and program.outputs == names
        ]
        if not programs and self.manifest.has_graph:
            return None
        lacks = {str(program): _describe_lack(program, device) for program in programs}
        fitting = [program for program in programs if lacks[str(program)] is None]
        if not fitting:
            if self._can_recompile:
                return None
            raise self._no_program_error(kind, precision, lacks)
        best = max(fitting, key=lambda program: device.rank(program.needs.get(kind, {})))
        problem = self._describe_change(best)
        if problem is None:
            return best
        if self._can_recompile:
            return None
        hint = f"{_COMPILE_AGAIN}; {_RECOMPILE}" if self.manifest.has_graph else _COMPILE_AGAIN
        raise UnsupportedModelError(problem, file=self.file, hint=hint)

    def _describe_change(self, program: SavedProgram) -> str | None:
        """Return the change of weft since the program was saved that keeps it from running, if there is one."""
        origin = f"saved by weft {self.manifest.version}, whose programs this version does not run"
        if self.manifest.meaning != MEANING:
            return f"{origin} (they have version {self.manifest.meaning}, not {MEANING})"
        unknown = serialization.find_unknown_record(program.records)
        return None if unknown is None else f"{origin} ({unknown} has changed)"

    def _no_program_error(self, kind: str, precision: str, lacks: Mapping[str, str | None]) -> DeviceError:
        if lacks:
            programs = "; ".join(f"for {name}, which needs {lack}" for name, lack in lacks.items())
            problem = f"none of its programs runs on this machine: it has one {programs}"
        else:
            programs = ", ".join(f"{program} in {program.precision}" for program in self.manifest.programs) or "none"
            problem = (
                f"there is no program for {kind} in {precision} with these outputs, and no graph: it has {programs}"
            )
        hint = _RECOMPILE if self.manifest.has_graph else "compile it with --target of this machine, or with its graph"
        return DeviceError(problem, file=self.file, hint=hint)

    def _load_program(self, program: SavedProgram, device: LoadingDriver) -> CachedModel:
        """Load a program from its copy in the cache; if there is none, read the file and write a copy afterwards."""
        blocks = self.manifest.blocks
        content = get_content(self._saved)
        device.take_support(
            {
                name: lambda block=blocks[number]: read_block(content, block, self.file)  # type: ignore[misc]
                for name, number in program.support.items()
            }
        )
        copy = SavedModelCopy(self._content_key(program), self.file, device.name, self._caches)
        cached = copy.get()
        if cached is None:
            return self._copy_program(program, copy, behind=True)
        self._check_digests()
        return cached

    def _content_key(self, program: SavedProgram) -> str:
        return key_of(*(self.manifest.blocks[number].name for number in (program.program, *program.arrays)))

    def _copy_program(self, program: SavedProgram, copy: SavedModelCopy, behind: bool) -> CachedModel:
        """Read a program into memory and write its copy to the cache; with `behind`, in the background."""
        content, blocks = get_content(self._saved), self.manifest.blocks
        try:
            structure, objects = serialization.split_code(read_block(content, blocks[program.program], self.file))
            memory = self._read_arrays([blocks[number] for number in program.arrays])
            self._check_digests({program.program, *program.arrays})
            cached = copy.put(structure, objects, memory, behind)
        except (ModelError, MemoryError):
            raise
        except Exception as error:  # a forged structure may raise anything
            raise damaged_error(f"its program cannot be read: {type(error).__name__}: {error}", self.file) from error
        if cached is None:
            raise damaged_error("its program is invalid", self.file)
        return cached

    def cache_program(self, device: LoadingDriver, precision: str, outputs: Sequence[str] | None) -> None:
        """Write the best program for a device to the cache, from which loads map it."""
        program = self._choose_program(device, precision, outputs)
        if program is not None:
            copy = SavedModelCopy(self._content_key(program), self.file, program.device, self._caches)
            if copy.get() is None:
                self._copy_program(program, copy, behind=False)

    def _read_arrays(self, blocks: Sequence[Block]) -> ArraysInMemory:
        """Read the arrays of a program into memory, at the aligned offsets that its structure has."""
        size = sum(serialization.align_up(block.size) for block in blocks)
        try:
            memory = ArraysInMemory(size)
        except OSError as error:
            raise OutOfMemoryError(f"{size:,} bytes of weights cannot be allocated", file=self.file) from error
        targets, offset = [], 0
        for block in blocks:
            targets.append((block, memory.writable[offset : offset + block.size]))
            offset += serialization.align_up(block.size)
        read_blocks(get_content(self._saved), targets, self.file)
        memory.set_filled(memory.size)
        return memory

    def portable(self) -> PortableSource:
        """Return the saved file as a source for other processes: its path if that suffices, or its bytes."""
        path = None if self._saved.path is None else str(self._saved.path.absolute())
        content = self._saved.content
        if isinstance(content, OpenFile):
            if content.is_whole and path is not None:
                return PortableSource(self.file, path, None, self._header.name, {})
            buffer = bytearray(content.size)
            content.read_into(memoryview(buffer), 0)
            return PortableSource(self.file, path, bytes(buffer), self._header.name, {})
        return PortableSource(self.file, path, content.tobytes(), self._header.name, {})

    @property
    def saved_name(self) -> str:
        """The digest of the whole file."""
        return self._header.name


def _open_graph(opened: OpenedModel, header: SavedHeader) -> OpenedModel:
    """Return the graph in a saved file as a source; an empty one if the file has no graph."""
    if header.graph is None:
        return replace(opened, content=memoryview(b""))
    start, content = header.graph.start, opened.content
    return replace(opened, content=content.from_offset(start) if isinstance(content, OpenFile) else content[start:])


def _is_available(kind: str) -> bool:
    try:
        choose(kind)
    except DeviceError:
        return False
    return True


def _describe_lack(program: SavedProgram, device: LoadingDriver) -> str | None:
    """Return a requirement of a program that this machine does not meet, if there is one."""
    for kind, needs in program.needs.items():
        try:
            candidate = device if kind == device.name.partition(":")[0] else driver(choose(kind).name)
        except DeviceError as error:
            return f"{kind}: {error.problem}"
        if not isinstance(candidate, LoadingDriver) or not isinstance(needs, Mapping):
            return "something unknown"
        lack = candidate.lack(needs)
        if lack is not None:
            return lack
    return None
