"""Read and write weft's own files, which belong to this user alone.

Cached files contain code and are trusted, so they are read only if no other user could have written them: every parent
folder belongs to this user or to root and is not writable by others (a sticky one like /tmp may be), and the folder and
its files belong to this user. Files are checked after they are opened. Systems without user ids rely on the access
rights of user folders.
"""

from __future__ import annotations

import os
import stat
import sys
import time
import warnings
from contextlib import suppress
from errno import EINVAL, ELOOP, ENOTDIR
from pathlib import Path

from weft.errors import CacheWarning
from weft.logs import CACHE
from weft.threads import make_lock

VARIABLE = "WEFT_CACHE"
"""The environment variable that names the cache folder; empty: no cache on disk."""

UNFINISHED = ".part"
STALE = 3600.0  # seconds after which an unfinished file counts as abandoned, and the last use of an entry is updated
_MAX_LINKS = 40
_OTHERS = stat.S_IWGRP | stat.S_IWOTH
_ROOT = 0
CHECK_INTERVAL = 1.0  # seconds until a folder is checked again; only its owner could have opened it to others
_checked: dict[Path, float] = {}  # when a folder passed the check
_warned: set[str] = set()
_warning_lock = make_lock()


def cache_folder() -> Path | None:
    """Return this user's cache folder, or None if there is none."""
    return user_folder(VARIABLE, "cache", "XDG_CACHE_HOME", "~/.cache")


def user_folder(variable: str, kind: str, linux: str, default_parent: str) -> Path | None:
    """Return weft's folder of a platformdirs kind, or the one that an environment variable names; None for none.

    On Linux its parent is named by the variable `linux`, by default `default_parent`.
    """
    named = os.environ.get(variable)
    if named is not None:
        return Path(named) if named else None
    try:
        if sys.platform == "linux":  # the same as platformdirs, which is slow to import
            parent = os.environ.get(linux, "")
            folder = (Path(parent) if parent.strip() else Path(default_parent).expanduser()) / "weft"
        else:
            import platformdirs

            folder = Path(getattr(platformdirs.PlatformDirs("weft", appauthor=False), f"user_{kind}_path"))
    except (OSError, RuntimeError):  # there is no home folder
        return None
    return folder if folder.is_absolute() else None


class ForeignFileError(OSError):
    """Other users could have written to the file or folder."""


def is_private(folder: Path) -> bool:
    """Whether a folder exists and only this user can write to it."""
    try:
        check_folder(folder)
    except OSError:
        return False
    return True


def check_folder(folder: Path) -> None:
    """Raise ForeignFileError if other users could have written to a folder, OSError if it does not exist."""
    path = folder.absolute()
    now = time.monotonic()
    if now - _checked.get(path, -CHECK_INTERVAL) >= CHECK_INTERVAL:
        _check_folder(path)
        _checked[path] = now


def _check_folder(folder: Path) -> None:
    if not hasattr(os, "getuid"):
        if not folder.is_dir():
            raise NotADirectoryError(ENOTDIR, "Not a directory", str(folder))
        return
    path, links = Path("/"), 0
    remaining = list(reversed(folder.parts[1:]))  # including "..", which may follow a link
    status = path.lstat()
    _check_parent(path, status)
    while remaining:
        name = remaining.pop()
        child = path.parent if name == ".." else path / name
        try:
            status = child.lstat()
        except PermissionError:
            problem = f"this user ({os.getuid()}) cannot read {path}; set {VARIABLE} to another folder"
            raise _foreign_file_error(problem) from None
        if stat.S_ISLNK(status.st_mode):
            _check_owner(child, status, (_ROOT, os.getuid()))
            links += 1
            if links > _MAX_LINKS:
                raise OSError(ELOOP, "Too many links", str(folder))
            target = child.readlink()
            if target.is_absolute():
                path = Path("/")
            remaining += reversed([part for part in target.parts if part != "/"])
            continue
        if not stat.S_ISDIR(status.st_mode):
            raise NotADirectoryError(ENOTDIR, "Not a directory", str(child))
        path = child
        _check_parent(path, status)
    status = path.lstat()
    _check_owner(path, status, (os.getuid(),))
    _check_permissions(path, status)


def _check_parent(path: Path, status: os.stat_result) -> None:
    _check_owner(path, status, (_ROOT, os.getuid()))
    if not status.st_mode & stat.S_ISVTX:
        _check_permissions(path, status)


def _check_owner(path: Path, status: os.stat_result, owners: tuple[int, ...]) -> None:
    if status.st_uid not in owners:
        raise _foreign_file_error(f"{path} belongs to another user ({status.st_uid})")


def _check_permissions(path: Path, status: os.stat_result) -> None:
    others = status.st_mode & _OTHERS
    if others & stat.S_IWOTH or (others and not _is_private_group(status.st_gid)):
        raise _foreign_file_error(f"other users may write to {path}; run chmod go-w on it")


def _foreign_file_error(problem: str) -> ForeignFileError:
    """Return the error for a file that cannot be trusted, and issue a CacheWarning the first time."""
    with _warning_lock:
        is_new = problem not in _warned
        _warned.add(problem)
    if is_new:
        CACHE.warning("a cache folder is not used: %s", problem)
        warnings.warn(f"a cache folder is not used: {problem}", CacheWarning, stacklevel=2)
    return ForeignFileError(problem)


def _is_private_group(group: int) -> bool:
    """Whether a group is this user's own, with no other members, as many systems create for each user."""
    import grp  # POSIX only, like pwd
    import pwd

    with suppress(KeyError, OSError):
        user, entry = pwd.getpwuid(os.getuid()), grp.getgrgid(group)
        return user.pw_gid == group and entry.gr_name == user.pw_name and set(entry.gr_mem) <= {user.pw_name}
    return False


def make_folder(folder: Path) -> None:
    """Create a folder and its parents for this user alone; raise OSError if other users could write to it."""
    try:
        check_folder(folder)
    except FileNotFoundError:
        for path in (*reversed(folder.parents), folder):
            if not path.is_dir():
                with suppress(FileExistsError):
                    path.mkdir(0o700)
        check_folder(folder)


def open_file(path: Path) -> int:
    """Open a file in a checked folder; raise OSError if it is missing or other users could have written it."""
    flags = ("O_NOFOLLOW", "O_NONBLOCK", "O_CLOEXEC", "O_BINARY")
    descriptor = os.open(path, os.O_RDONLY | sum(getattr(os, flag, 0) for flag in flags))
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise OSError(EINVAL, "Not a file", str(path))
        if hasattr(os, "getuid"):
            _check_owner(path, status, (os.getuid(),))
            _check_permissions(path, status)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def read_file(path: Path) -> bytes:
    """Read one of weft's files; raise OSError if it is missing or other users could have written it."""
    check_folder(path.parent)
    with os.fdopen(open_file(path), "rb") as file:
        return file.read()


def write_file(path: Path, data: bytes) -> None:
    """Write a file atomically; raise OSError if that fails or other users could write to the folder."""
    from tempfile import mkstemp  # slow to import; a cached load writes nothing

    make_folder(path.parent)
    handle, name = mkstemp(UNFINISHED, dir=path.parent)
    unfinished = Path(name)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        unfinished.replace(path)
    except BaseException:
        with suppress(OSError):
            unfinished.unlink()
        raise
