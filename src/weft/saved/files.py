"""A saved file as a model's files: the graph inside of it, and the programs that were compiled from it.

What of a program runs is either mapped from a copy in weft's own cache, or read into memory of this process; the file
itself may change at any time without doing harm to what is loaded. A program runs only if this user signed it, or
said that it is to be trusted; the graph alone is but a model.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, cast

from weft.backends.device import LoadingDriver
from weft.cache import serialization
from weft.cache.digests import check_once, key_of
from weft.cache.entries import CachedModel, CopiedModel
from weft.cache.memory import ArraysInMemory
from weft.errors import DeviceError, ModelError, OutOfMemoryError, UnsupportedModelError, UntrustedModelError
from weft.frontend.files import OpenFile
from weft.frontend.source import OpenedModel
from weft.runtime.devices import choose, driver
from weft.runtime.model_files import ModelFiles, PortableSource, Read, missing_file
from weft.saved.layout import MEANING, SavedHead, content_of, damaged, read_block, read_blocks, read_head
from weft.saved.manifest import Block, SavedProgram
from weft.saved.signing import is_own

if TYPE_CHECKING:
    from weft.ir.graph import OnnxModel
    from weft.runtime.options import LoadOptions, Precision

_AGAIN = "compile the model again here"
_RECOMPILE = "recompile=True compiles the graph in the file for what is here"
_NO_GRAPH = "the file was saved without its graph"


def open_saved(
    opened: OpenedModel, read: Read, folder: Path | None, records: Path | None, options: LoadOptions
) -> SavedFiles:
    """The files in a saved one; a WeftError where it is damaged, or somebody else's."""
    content = content_of(opened)
    head = read_head(content, opened.file)
    trusted = options.trusted or is_own(head.signed, head.signature)
    if not trusted and not options.recompile:
        graph = f"; {_RECOMPILE}, and runs nothing else of it" if head.manifest.has_graph else ""
        raise UntrustedModelError(
            "the file holds machine code that this user did not compile",
            file=opened.file,
            hint=f"trusted=True runs it, if you trust whoever made the file{graph}",
        )
    return SavedFiles(opened, head, read, folder, records, trusted, options)


def reopen_saved(
    source: PortableSource,
    opened: OpenedModel,
    read: Read,
    folder: Path | None,
    records: Path | None,
    options: LoadOptions,
) -> SavedFiles:
    """The files that another process had; ChangedFileError where they hold something else."""
    files = open_saved(opened, read, folder, records, options)
    if files.saved_name != source.name:
        raise missing_file(f"{source.path} has other content", source.file)
    return files


class SavedFiles(ModelFiles):
    """The graph of a saved file, and its programs."""

    def __init__(
        self,
        opened: OpenedModel,
        head: SavedHead,
        read: Read,
        folder: Path | None,
        records: Path | None,
        trusted: bool,
        options: LoadOptions,
    ) -> None:
        self._saved = opened
        self._head = head
        self._trusted = trusted
        self._anew = options.recompile
        self._caches = options.cache
        self._is_checked = False
        self.manifest = head.manifest
        super().__init__(_graph(opened, head), read, folder, records)
        self._name = head.manifest.model

    def _check(self, known: Collection[int] = ()) -> None:
        """See that every byte of the file is what it was, but for blocks that were read already: before any is used."""
        with self._lock:
            if self._is_checked:
                return
            content = content_of(self._saved)
            wanted = [block for number, block in enumerate(self.manifest.blocks) if number not in known]
            wanted += [] if self._head.graph is None else [self._head.graph]

            def check() -> None:
                read_blocks(content, [(block, None) for block in wanted], self.file)

            if isinstance(content, OpenFile):
                check_once(content, self._saved.path, self._records, self._head.name, check)
            else:
                check()
            self._is_checked = True

    def model(self) -> OnnxModel:
        self._check_graph()
        return super().model()

    @property
    def graph(self) -> OpenedModel:
        """The model itself, as a source; a ModelError where it was left out."""
        self._check_graph()
        return self.opened

    def _check_graph(self) -> None:
        if not self.manifest.has_graph:
            hint = "compile it with its graph, or load the ONNX file: other shapes, outputs, weights or devices need it"
            raise ModelError(_NO_GRAPH, file=self.file, hint=hint)
        self._check()

    def settled_options(self, options: LoadOptions) -> LoadOptions:
        """Options in which what the caller left open is what the file has."""
        from weft.runtime.options import USUAL_PRECISION
        from weft.runtime.policy import is_open

        programs = self._usable()
        if not programs:
            return options
        kinds = list(dict.fromkeys(program.device for program in programs))
        here = kinds if len(kinds) == 1 and not self._anew else [kind for kind in kinds if _is_here(kind)]
        if is_open(options.device) and (here or not (self._anew and self.manifest.has_graph)):
            options = replace(options, device=tuple(here) if len(here) > 1 else (here or kinds)[0])
        if options.precision == USUAL_PRECISION:
            options = replace(options, precision=cast("Precision", programs[0].precision))
        if options.outputs is None and programs[0].outputs is not None:
            options = replace(options, outputs=programs[0].outputs)
        return options

    def _usable(self) -> tuple[SavedProgram, ...]:
        return self.manifest.programs if self._trusted else ()

    def prepared(self, device: LoadingDriver, precision: str, outputs: Sequence[str] | None) -> CachedModel | None:
        """The best program for a device that the file has; None where the graph is to be compiled.

        A WeftError where there is none that this machine can run, or no graph to compile.
        """
        program = self._chosen(device, precision, outputs)
        if program is not None:
            return self._loaded(program, device)
        self._check()  # what is compiled may be in the cache, and the file not be looked at
        return None

    def _chosen(self, device: LoadingDriver, precision: str, outputs: Sequence[str] | None) -> SavedProgram | None:
        kind = device.name.partition(":")[0]
        wanted = None if outputs is None else tuple(outputs)
        programs = [
            program
            for program in self._usable()
            if program.device == kind and program.precision == precision and program.outputs == wanted
        ]
        if not programs and self.manifest.has_graph:
            return None
        lacks = {str(program): _lack(program, device) for program in programs}
        fitting = [program for program in programs if lacks[str(program)] is None]
        if not fitting:
            if self._anew and self.manifest.has_graph:
                return None
            raise self._refusal(kind, precision, lacks)
        best = max(fitting, key=lambda program: device.rank(program.needs.get(kind, {})))
        outdated = self._outdated(best)
        if outdated is None:
            return best
        if self._anew and self.manifest.has_graph:
            return None
        hint = f"{_AGAIN}; {_RECOMPILE}" if self.manifest.has_graph else _AGAIN
        raise UnsupportedModelError(outdated, file=self.file, hint=hint)

    def _outdated(self, program: SavedProgram) -> str | None:
        """What weft itself has changed since a program was saved."""
        made = f"saved by weft {self.manifest.version}, whose programs this version does not run"
        if self.manifest.meaning != MEANING:
            return f"{made} (they have the number {self.manifest.meaning}, not {MEANING})"
        unknown = serialization.unknown_record(program.records)
        return None if unknown is None else f"{made} ({unknown} has changed)"

    def _refusal(self, kind: str, precision: str, lacks: Mapping[str, str | None]) -> DeviceError:
        if lacks:
            told = "; ".join(f"for {name}, which needs {lack}" for name, lack in lacks.items())
            problem = f"none of its programs runs on this machine: it has one {told}"
        else:
            has = ", ".join(f"{program} in {program.precision}" for program in self.manifest.programs) or "none"
            problem = f"there is no program for {kind} in {precision} with these outputs, and no graph: it has {has}"
        hint = _RECOMPILE if self.manifest.has_graph else "compile it with --target of this machine, or with its graph"
        return DeviceError(problem, file=self.file, hint=hint)

    def _loaded(self, program: SavedProgram, device: LoadingDriver) -> CachedModel:
        """A program from its copy in the cache, or read from the file; then a copy is made behind that."""
        blocks = self.manifest.blocks
        content = content_of(self._saved)
        device.take_support(
            {
                name: lambda block=blocks[number]: read_block(content, block, self.file)  # type: ignore[misc]
                for name, number in program.support.items()
            }
        )
        copy = CopiedModel(self._content_name(program), self.file, device.name, self._caches)
        kept = copy.get()
        if kept is None:
            return self._copied(program, copy, behind=True)
        self._check()
        return kept

    def _content_name(self, program: SavedProgram) -> str:
        return key_of(*(self.manifest.blocks[number].name for number in (program.program, *program.arrays)))

    def _copied(self, program: SavedProgram, copy: CopiedModel, behind: bool) -> CachedModel:
        content, blocks = content_of(self._saved), self.manifest.blocks
        try:
            structure, objects = serialization.without_code(read_block(content, blocks[program.program], self.file))
            arrays = [blocks[number] for number in program.arrays]
            memory = self._room(arrays)
            self._read_arrays(arrays, memory)
            self._check({program.program, *program.arrays})
            made = copy.put(structure, objects, memory, behind)
        except (ModelError, MemoryError):
            raise
        except Exception as error:  # whatever a structure of another making leads to
            raise damaged(f"its program cannot be read: {type(error).__name__}: {error}", self.file) from error
        if made is None:
            raise damaged("its program is none", self.file)
        return made

    def keep_copy(self, device: LoadingDriver, precision: str, outputs: Sequence[str] | None) -> None:
        """See that the best program for a device can be mapped when it is loaded."""
        program = self._chosen(device, precision, outputs)
        if program is not None:
            copy = CopiedModel(self._content_name(program), self.file, program.device, self._caches)
            if copy.get() is None:
                self._copied(program, copy, behind=False)

    def _room(self, wanted: Sequence[Block]) -> ArraysInMemory:
        size = sum(serialization.aligned(block.size) for block in wanted)
        try:
            return ArraysInMemory(size)
        except OSError as error:
            raise OutOfMemoryError(f"{size:,} bytes of weights cannot be had", file=self.file) from error

    def _read_arrays(self, wanted: Sequence[Block], memory: ArraysInMemory) -> None:
        """All arrays of a program, as the structure has them one after the other."""
        parts, place = [], 0
        for block in wanted:
            parts.append((block, memory.room[place : place + block.size]))
            place += serialization.aligned(block.size)
        read_blocks(content_of(self._saved), parts, self.file)
        memory.filled_to(memory.size)

    def portable(self) -> PortableSource:
        """The saved file, which is opened again elsewhere: by its path, or with its bytes."""
        path = None if self._saved.path is None else str(self._saved.path.absolute())
        content = self._saved.content
        if isinstance(content, OpenFile):
            if content.is_whole and path is not None:
                return PortableSource(self.file, path, None, self._head.name, {})
            buffer = bytearray(content.size)
            content.read_into(memoryview(buffer), 0)
            return PortableSource(self.file, path, bytes(buffer), self._head.name, {})
        return PortableSource(self.file, path, content.tobytes(), self._head.name, {})

    @property
    def saved_name(self) -> str:
        """Of all that the file holds."""
        return self._head.name


def _graph(opened: OpenedModel, head: SavedHead) -> OpenedModel:
    """The graph in a saved file as a source of its own; nothing, where it was left out."""
    if head.graph is None:
        return replace(opened, content=memoryview(b""))
    start, content = head.graph.start, opened.content
    return replace(opened, content=content.rest(start) if isinstance(content, OpenFile) else content[start:])


def _is_here(kind: str) -> bool:
    try:
        choose(kind)
    except DeviceError:
        return False
    return True


def _lack(program: SavedProgram, device: LoadingDriver) -> str | None:
    """What a program needs that this machine does not have."""
    for kind, needs in program.needs.items():
        try:
            found = device if kind == device.name.partition(":")[0] else driver(choose(kind).name)
        except DeviceError as error:
            return f"{kind}: {error.problem}"
        lack = (
            found.lack(needs) if isinstance(found, LoadingDriver) and isinstance(needs, Mapping) else "what is unknown"
        )
        if lack is not None:
            return lack
    return None
