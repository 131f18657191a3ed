"""Files that weft keeps for itself: folders and files of this user alone.

What lies there is run as code and taken for true, so it counts only if nobody else could have put it there: every
folder on the way belongs to this user or to root and can be written by no one else (a sticky one like /tmp can, but
not what others own in it), the folder itself and its files belong to this user. Files are judged once they are open.
Systems without user ids leave it to the rights that folders of users have there.
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
"""The environment variable that names another folder; empty means no cache on disk."""

UNFINISHED = ".part"
STALE = 3600.0  # seconds after which an unfinished file has been given up, and an entry's last use is noted again
_MOST_LINKS = 40
_OTHERS = stat.S_IWGRP | stat.S_IWOTH
_ROOT = 0
GOOD_FOR = 1.0  # seconds in which a folder is not looked at again: only its owner could open it to others
_checked: dict[Path, float] = {}  # when a folder was found good
_warned: set[str] = set()
_telling = make_lock()


def cache_folder() -> Path | None:
    """Where this user's caches are; None for nowhere."""
    return own_folder(VARIABLE, "cache", "XDG_CACHE_HOME", "~/.cache")


def own_folder(variable: str, kind: str, linux: str, usual: str) -> Path | None:
    """weft's folder of a kind that platformdirs has, for this user, unless a variable says another; None for nowhere.

    `linux` is the variable that names the folder around it there, and `usual` what that is by default.
    """
    named = os.environ.get(variable)
    if named is not None:
        return Path(named) if named else None
    try:
        if sys.platform == "linux":  # as platformdirs has it, which takes its time to import
            said = os.environ.get(linux, "")
            folder = (Path(said) if said.strip() else Path(usual).expanduser()) / "weft"
        else:
            import platformdirs

            folder = Path(getattr(platformdirs.PlatformDirs("weft", appauthor=False), f"user_{kind}_path"))
    except (OSError, RuntimeError):  # no home to be found
        return None
    return folder if folder.is_absolute() else None


class ForeignFileError(OSError):
    """A file or folder that others could have written."""


def usable(folder: Path) -> bool:
    """Whether a folder is there and this user's alone."""
    try:
        check_folder(folder)
    except OSError:
        return False
    return True


def check_folder(folder: Path) -> None:
    """Raise ForeignFileError where others could have put something into a folder, OSError where it is not there."""
    place = folder.absolute()
    now = time.monotonic()
    if now - _checked.get(place, -GOOD_FOR) >= GOOD_FOR:
        _check_folder(place)
        _checked[place] = now


def _check_folder(folder: Path) -> None:
    if not hasattr(os, "getuid"):
        if not folder.is_dir():
            raise NotADirectoryError(ENOTDIR, "Not a directory", str(folder))
        return
    place, links = Path("/"), 0
    waiting = list(reversed(folder.parts[1:]))  # with its "..", which links may lead anywhere
    status = place.lstat()
    _check_on_the_way(place, status)
    while waiting:
        name = waiting.pop()
        found = place.parent if name == ".." else place / name
        try:
            status = found.lstat()
        except PermissionError:
            raise _foreign(f"{place} is closed to this user ({os.getuid()}); {VARIABLE} names another folder") from None
        if stat.S_ISLNK(status.st_mode):
            _check_owner(found, status, (_ROOT, os.getuid()))
            links += 1
            if links > _MOST_LINKS:
                raise OSError(ELOOP, "Too many links", str(folder))
            target = found.readlink()
            if target.is_absolute():
                place = Path("/")
            waiting += reversed([part for part in target.parts if part != "/"])
            continue
        if not stat.S_ISDIR(status.st_mode):
            raise NotADirectoryError(ENOTDIR, "Not a directory", str(found))
        place = found
        _check_on_the_way(place, status)
    status = place.lstat()
    _check_owner(place, status, (os.getuid(),))
    _check_rights(place, status)


def _check_on_the_way(place: Path, status: os.stat_result) -> None:
    _check_owner(place, status, (_ROOT, os.getuid()))
    if not status.st_mode & stat.S_ISVTX:
        _check_rights(place, status)


def _check_owner(place: Path, status: os.stat_result, owners: tuple[int, ...]) -> None:
    if status.st_uid not in owners:
        raise _foreign(f"{place} belongs to another user ({status.st_uid})")


def _check_rights(place: Path, status: os.stat_result) -> None:
    others = status.st_mode & _OTHERS
    if others & stat.S_IWOTH or (others and not _is_private_group(status.st_gid)):
        raise _foreign(f"other users may write to {place} (chmod go-w would end that)")


def _foreign(problem: str) -> ForeignFileError:
    """The error for what cannot be trusted, of which a CacheWarning tells once."""
    with _telling:
        fresh = problem not in _warned
        _warned.add(problem)
    if fresh:
        CACHE.warning("what is cached there is not used: %s", problem)
        warnings.warn(f"what is cached there is not used: {problem}", CacheWarning, stacklevel=2)
    return ForeignFileError(problem)


def _is_private_group(group: int) -> bool:
    """Whether a group has this user as its only member, as many systems make one for each."""
    import grp
    import pwd

    with suppress(KeyError, OSError):
        user, found = pwd.getpwuid(os.getuid()), grp.getgrgid(group)
        return user.pw_gid == group and found.gr_name == user.pw_name and set(found.gr_mem) <= {user.pw_name}
    return False


def make_folder(folder: Path) -> None:
    """Make a folder, and those on the way to it, for this user alone; an OSError where it is not so."""
    try:
        check_folder(folder)
    except FileNotFoundError:
        for place in (*reversed(folder.parents), folder):
            if not place.is_dir():
                with suppress(FileExistsError):
                    place.mkdir(0o700)
        check_folder(folder)


def open_file(path: Path) -> int:
    """A descriptor of a file in a folder that was checked; OSError where it is not there, or not this user's alone."""
    flags = ("O_NOFOLLOW", "O_NONBLOCK", "O_CLOEXEC", "O_BINARY")
    descriptor = os.open(path, os.O_RDONLY | sum(getattr(os, flag, 0) for flag in flags))
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise OSError(EINVAL, "Not a file", str(path))
        if hasattr(os, "getuid"):
            _check_owner(path, status, (os.getuid(),))
            _check_rights(path, status)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def read_file(path: Path) -> bytes:
    """What a file of weft's holds; OSError where it is not there, or not this user's alone."""
    check_folder(path.parent)
    with os.fdopen(open_file(path), "rb") as file:
        return file.read()


def write_file(path: Path, data: bytes) -> None:
    """Write a file whole or not at all; OSError where the disk does not allow it, or others may write there."""
    from tempfile import mkstemp  # slow to import, and not needed to read

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
