"""`weft cache`: the cache of compiled models and kernels on disk."""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from rich.text import Text

from weft.cache.files import STALE, VARIABLE, cache_folder
from weft.cache.inventory import (
    CODE,
    MODELS,
    NOTES,
    UNDONE,
    CacheFile,
    find_damaged,
    list_cache_files,
    remove,
    select_unused,
)
from weft.cli import option_types, options, output
from weft.cli.output import format_bytes
from weft.errors import InputError

DAYS = 30.0  # without use, after which `clean` removes a file
_DAY = 86_400.0
_KINDS = {MODELS: "compiled models", CODE: "kernel code", NOTES: "measurements and digests", UNDONE: "unfinished"}
EXAMPLES = (
    ("the size of the cache", "weft cache size"),
    ("the cached models", "weft cache list"),
    ("remove files that were not used for a week", "weft cache clean --older-than 7"),
)


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "cache",
        help="list, clean or verify the cache of compiled models",
        description=f"Manage the cache of compiled models, in the folder of {VARIABLE} or in the user's cache folder. "
        "All subcommands take --json.",
    )
    actions = parser.add_subparsers(dest="what", metavar="ACTION", required=True)
    texts = {
        "dir": "print the folder",
        "size": "show the size of each kind of file",
        "list": "list cached models, most recently used first",
        "clean": "remove files that were not used for a long time",
        "verify": "find and remove damaged files, which are compiled again when needed",
    }
    parsers = {name: actions.add_parser(name, help=text) for name, text in texts.items()}
    group = parsers["clean"].add_mutually_exclusive_group()
    group.add_argument(
        "--older-than",
        type=option_types.positive,
        default=DAYS,
        metavar="DAYS",
        help=f"days without use (default {DAYS:g})",
    )
    group.add_argument("--all", action="store_true", help="remove everything, including measurements")
    for subparser in parsers.values():
        options.add_json(subparser)


def run(args: argparse.Namespace) -> int:
    folder = cache_folder()
    if args.what == "dir":
        return _print_folder(folder, args.json)
    if folder is None:
        raise InputError("the cache is off", hint=f"set {VARIABLE} to a folder, or unset it")
    files = list_cache_files(folder)
    match args.what:
        case "size":
            return _print_sizes(folder, files, args.json)
        case "list":
            return _print_models([file for file in files if file.kind == MODELS], args.json)
        case "clean":
            return _clean(files if args.all else _unused_files(files, args.older_than * _DAY), args.json)
        case _:
            return _verify(folder, files, args.json)


def _unused_files(files: Sequence[CacheFile], seconds: float) -> list[CacheFile]:
    """Return the files that were not used for a time, and abandoned unfinished ones, but no measurements."""
    abandoned = select_unused([file for file in files if file.kind == UNDONE], STALE)
    return [*select_unused([file for file in files if file.kind in (MODELS, CODE)], seconds), *abandoned]


def _print_folder(folder: Path | None, as_json: bool) -> int:
    if as_json:
        output.print_json({"folder": None if folder is None else str(folder)})
    else:
        print("off" if folder is None else folder)
    return 0


def _print_sizes(folder: Path, files: Sequence[CacheFile], as_json: bool) -> int:
    sizes = {kind: [file.bytes for file in files if file.kind == kind] for kind in _KINDS}
    if as_json:
        kinds = {kind: {"files": len(each), "bytes": sum(each)} for kind, each in sizes.items()}
        output.print_json({"folder": str(folder), "bytes": sum(map(sum, sizes.values())), "kinds": kinds})
        return 0
    rows = [(_KINDS[kind], len(each), format_bytes(sum(each))) for kind, each in sizes.items() if each]
    rows.append(("total", len(files), format_bytes(sum(file.bytes for file in files))))
    output.console().print(output.table(str(folder), ("kind", "files", "size"), rows, right=("files", "size")))
    return 0


def _print_models(files: Sequence[CacheFile], as_json: bool) -> int:
    if as_json:
        output.print_json([_file_record(file) for file in files])
        return 0
    rows = [
        (
            Text(file.file or "unknown", "bold"),
            file.device,
            format_bytes(file.bytes),
            _format_age(file.used),
            file.path.stem[:12],
        )
        for file in files
    ]
    console = output.console()
    if rows:
        console.print(output.table("", ("model", "device", "size", "last used", "entry"), rows, right=("size",)))
    else:
        console.print("the cache has no models")
    return 0


def _clean(files: Sequence[CacheFile], as_json: bool) -> int:
    freed = remove(files)
    if as_json:
        output.print_json({"removed": len(files), "bytes": freed})
    else:
        output.console().print(f"{len(files)} files removed, {format_bytes(freed)}", highlight=False)
    return 0


def _verify(folder: Path, files: Sequence[CacheFile], as_json: bool) -> int:
    """Remove damaged files; return 1 if there are any."""
    candidates = [file for file in files if file.kind in (MODELS, CODE)]
    damaged_files = find_damaged(folder, candidates)
    remove(damaged_files)
    if as_json:
        output.print_json({"checked": len(candidates), "damaged": [_file_record(file) for file in damaged_files]})
        return 1 if damaged_files else 0
    console = output.console()
    for file in damaged_files:
        console.print(f"damaged and removed: {file.file or file.path.name}", highlight=False, markup=False)
    console.print(f"{len(candidates)} models and kernels checked, {len(damaged_files)} damaged", highlight=False)
    return 1 if damaged_files else 0


def _file_record(file: CacheFile) -> dict[str, Any]:
    used = datetime.fromtimestamp(file.used).astimezone().isoformat(timespec="seconds")
    facts = {"file": file.file, "device": file.device, "kind": file.kind, "bytes": file.bytes, "used": used}
    return {**facts, "entry": str(file.path)}


def _format_age(moment: float) -> str:
    seconds = max(time.time() - moment, 0.0)
    for name, span in (("days", _DAY), ("hours", 3600.0), ("minutes", 60.0)):
        if seconds >= 2 * span:
            return f"{seconds / span:.0f} {name} ago"
    return "just now"
