"""`weft cache`: what is kept on disk, from where compiled models are loaded without compiling them again."""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from rich.text import Text

from weft.cache.files import STALE, VARIABLE, cache_folder
from weft.cache.inventory import CODE, MODELS, NOTES, UNDONE, KeptFile, damaged, kept_files, older, remove
from weft.cli import option_types, options, output
from weft.cli.output import format_bytes
from weft.errors import InputError

DAYS = 30.0  # without use, after which `clean` removes what is kept
_DAY = 86_400.0
_KINDS = {MODELS: "compiled models", CODE: "code of kernels", NOTES: "measurements and digests", UNDONE: "unfinished"}
EXAMPLES = (
    ("how much there is", "weft cache size"),
    ("the models that are kept", "weft cache list"),
    ("what was not used for a week goes", "weft cache clean --older-than 7"),
)


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "cache",
        help="what is kept on disk: where, how much, which models; clean it, verify it",
        description=f"What weft keeps on disk, in the folder that {VARIABLE} names or in the user's cache folder. "
        "Each takes --json, for programs.",
    )
    what = parser.add_subparsers(dest="what", metavar="WHAT", required=True)
    texts = {
        "dir": "where it lies",
        "size": "how much there is of each kind",
        "list": "the models that are kept, those used last first",
        "clean": "remove what was not used for long",
        "verify": "look for damage, and remove what is damaged: it is made again when it is needed",
    }
    parsers = {name: what.add_parser(name, help=text) for name, text in texts.items()}
    chosen = parsers["clean"].add_mutually_exclusive_group()
    chosen.add_argument(
        "--older-than",
        type=option_types.positive,
        default=DAYS,
        metavar="DAYS",
        help=f"days without use (default {DAYS:g})",
    )
    chosen.add_argument("--all", action="store_true", help="everything, measurements too")
    for each in parsers.values():
        options.add_json(each)


def run(args: argparse.Namespace) -> int:
    folder = cache_folder()
    if args.what == "dir":
        return _print_folder(folder, args.json)
    if folder is None:
        raise InputError("nothing is kept on disk", hint=f"set {VARIABLE} to a folder, or do not set it at all")
    kept = kept_files(folder)
    match args.what:
        case "size":
            return _print_sizes(folder, kept, args.json)
        case "list":
            return _print_models([one for one in kept if one.kind == MODELS], args.json)
        case "clean":
            return _clean(kept if args.all else _unused(kept, args.older_than * _DAY), args.json)
        case _:
            return _verify(folder, kept, args.json)


def _unused(kept: Sequence[KeptFile], seconds: float) -> list[KeptFile]:
    """What was not used for so long; what was begun and given up goes in any case, measurements stay."""
    given_up = older([one for one in kept if one.kind == UNDONE], STALE)
    return [*older([one for one in kept if one.kind in (MODELS, CODE)], seconds), *given_up]


def _print_folder(folder: Path | None, as_json: bool) -> int:
    if as_json:
        output.print_json({"folder": None if folder is None else str(folder)})
    else:
        print("nowhere" if folder is None else folder)
    return 0


def _print_sizes(folder: Path, kept: Sequence[KeptFile], as_json: bool) -> int:
    sizes = {kind: [one.bytes for one in kept if one.kind == kind] for kind in _KINDS}
    if as_json:
        kinds = {kind: {"files": len(found), "bytes": sum(found)} for kind, found in sizes.items()}
        output.print_json({"folder": str(folder), "bytes": sum(map(sum, sizes.values())), "kinds": kinds})
        return 0
    rows = [(_KINDS[kind], len(found), format_bytes(sum(found))) for kind, found in sizes.items() if found]
    rows.append(("all", len(kept), format_bytes(sum(one.bytes for one in kept))))
    output.console().print(output.table(str(folder), ("what", "files", "size"), rows, right=("files", "size")))
    return 0


def _print_models(kept: Sequence[KeptFile], as_json: bool) -> int:
    if as_json:
        output.print_json([_record(one) for one in kept])
        return 0
    rows = [
        (Text(one.file or "unknown", "bold"), one.device, format_bytes(one.bytes), _ago(one.used), one.path.stem[:12])
        for one in kept
    ]
    console = output.console()
    if rows:
        console.print(output.table("", ("model", "device", "size", "last used", "entry"), rows, right=("size",)))
    else:
        console.print("no models are kept")
    return 0


def _clean(chosen: Sequence[KeptFile], as_json: bool) -> int:
    freed = remove(chosen)
    if as_json:
        output.print_json({"removed": len(chosen), "bytes": freed})
    else:
        output.console().print(f"{len(chosen)} files removed, {format_bytes(freed)}", highlight=False)
    return 0


def _verify(folder: Path, kept: Sequence[KeptFile], as_json: bool) -> int:
    """1 where something was damaged."""
    checked = [one for one in kept if one.kind in (MODELS, CODE)]
    found = damaged(folder, checked)
    remove(found)
    if as_json:
        output.print_json({"checked": len(checked), "damaged": [_record(one) for one in found]})
        return 1 if found else 0
    console = output.console()
    for one in found:
        console.print(f"damaged, and removed: {one.file or one.path.name}", highlight=False, markup=False)
    console.print(f"{len(checked)} models and kernels checked, {len(found)} damaged", highlight=False)
    return 1 if found else 0


def _record(one: KeptFile) -> dict[str, Any]:
    used = datetime.fromtimestamp(one.used).astimezone().isoformat(timespec="seconds")
    facts = {"file": one.file, "device": one.device, "kind": one.kind, "bytes": one.bytes, "used": used}
    return {**facts, "entry": str(one.path)}


def _ago(moment: float) -> str:
    seconds = max(time.time() - moment, 0.0)
    for name, span in (("days", _DAY), ("hours", 3600.0), ("minutes", 60.0)):
        if seconds >= 2 * span:
            return f"{seconds / span:.0f} {name} ago"
    return "just now"
