"""File tracker: which file a name stands for now, and what of each file was not read yet.

A name does not say which file it is. Log files are rotated: renamed, while their writer may go on to write to them, and
created anew; or copied and truncated; or compressed. So a file is recognised by its inode and by what was read of it. A
file that grows is held open, so that it is read to its end also when it is renamed or removed. One that was truncated
is read on in its copy. A file with another inode, or with other content, is another file, and read from its start. A
name may have passed to a third file before it is looked at again: the one in between is found beside it.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from ..types.errors import FluxError
from .codecs import DAMAGED, is_compressed, open_plain, plain_name
from .formats import Format, errors_from
from .segments import DONE, ROTATED, FileSegment, FileState, Segments
from .text_file import END_BYTES, Prefix, TextFile, changed, has_prefix, prefix_of

log = logging.getLogger("flux")

HELD_MAX = 256  # Files that are held open; of more, those that were read last.

# A file that was changed so long ago is not being written any more.
WRITE_GRACE_S = 2.0
REMOVED_GRACE_S = 5.0  # A writer may still have it open.

REMOVED = "Files: %s was removed when it was not held open. It was read up to %d, where it ended a moment before"

_NOTHING = Prefix(0, 0)
_ROTATED = r"[-._]\d[-._:T\d]*"  # A number or a date, as rotation adds it to a name.


@dataclass(eq=False)
class TrackedFile:
    """A file, its key if it has one, and what was read of it; `is_final`: nothing is appended any more."""

    state: FileState
    key: int | None = None
    file: TextFile | None = None
    is_final: bool = False
    seen: tuple[str, int, int] | None = None  # Name, size and time of change when it was last recognised.
    last_read: float = field(default_factory=time.monotonic)

    @property
    def path(self) -> Path:
        """Its name, or the last one that is known."""
        return Path(self.state.path)

    @property
    def is_done(self) -> bool:
        """Whether it is never read again."""
        return self.state.status == DONE

    @property
    def identity(self) -> tuple[int, int]:
        """Its device and inode."""
        return self.state.identity


class FileTracker:
    """The files of one source; `follow`: they may grow, be rotated and removed."""

    def __init__(self, format: Format, follow: bool, segments: Segments) -> None:
        self._format = format
        self._follow = follow
        self._segments = segments
        self._files: dict[tuple[int, int], TrackedFile] = {}
        self._read: dict[int, Prefix] = {}  # By key.
        self._last_of: dict[str, TrackedFile] = {}  # The file for which a name stood when it was last looked at.

    def grows(self, path: Path) -> bool:
        """Return whether records may be appended to a file."""
        return self._format.grows and not is_compressed(path)

    def poll(self, paths: Iterable[Path]) -> list[TrackedFile]:
        """Return the files with content that was not read: those that have lost their name first, then by name."""
        listed = []
        for path in paths:
            with errors_from(path):
                if (tracked := self._recognise(path)) is not None:
                    listed.append(tracked)
        named = {id(tracked) for tracked in listed}
        unlisted = [tracked for tracked in self._files.values() if id(tracked) not in named]
        rotated = [tracked for tracked in unlisted if not tracked.is_done and self._is_held(tracked)]
        unread = []
        for tracked in [*rotated, *listed]:
            with errors_from(tracked.path):
                if self._has_more(tracked, tracked not in rotated):
                    unread.append(tracked)
        self._hold_few(listed)
        return unread

    def end(self, tracked: TrackedFile) -> int | None:
        """Return where a file ends that may grow; None for one that is read as a whole."""
        return None if tracked.file is None or tracked.file.is_compressed else tracked.file.stat.st_size

    def read_of(self, key: int) -> Prefix:
        """Return what was read of the file `key`."""
        return self._read[key]

    def note_read(self, tracked: TrackedFile, read: Prefix) -> None:
        """Note what was read of a file."""
        assert tracked.key is not None
        tracked.state = replace(tracked.state, read=read)
        self._read[tracked.key] = read
        tracked.last_read = time.monotonic()

    def note_done(self, tracked: TrackedFile) -> None:
        """Note that a file is never read again."""
        if tracked.file is not None:
            tracked.file.close()
            tracked.file = None
        self._note(tracked, DONE)
        if not tracked.path.exists():
            self._files.pop(tracked.identity, None)  # Another file may get its inode.

    def _note(self, tracked: TrackedFile, status: str) -> None:
        tracked.state = replace(tracked.state, status=status)
        if tracked.key is not None:
            self._segments.note(tracked.key, status)

    def close(self) -> None:
        """Close all files."""
        for tracked in self._files.values():
            if tracked.file is not None:
                tracked.file.close()

    # After a restart.

    def reopen(self, segment: FileSegment, begin: Prefix) -> TrackedFile:
        """Return the file of a segment, at the place where it is read again."""
        wanted = [begin] if segment.end is None else [begin, segment.end]
        found = self._find(segment.file, wanted)
        if found is None:
            raise FluxError(
                f"Files: {segment.file.path} was read beyond {begin.place:,}, and no file in its directory "
                "holds what was read any more: it was removed, cut or replaced while the ingress was down. Its rows "
                "cannot be read again. Run the flow again"
            )
        for old in [old for old in self._files.values() if old.key == segment.key]:
            del self._files[old.identity]
            if old.file is not None:
                old.file.close()
        return self._track_again(found, replace(segment.file, read=begin), segment.key)

    def adopt(self, files: dict[int, FileState]) -> None:
        """Track the files that were read before, except those that were read again already."""
        tracked = {file.key for file in self._files.values()}
        self._read = {key: state.read for key, state in files.items()} | self._read
        for key, state in files.items():
            if key in tracked:
                continue
            if state.status == DONE or not self._follow:
                self._files[state.identity] = TrackedFile(replace(state, status=DONE), key)
            elif (found := self._find(state, [state.read])) is not None:
                self._track_again(found, state, key)
            elif state.status == ROTATED:
                log.warning(REMOVED, state.path, state.read.place)
            else:
                raise FluxError(
                    f"Files: {state.path} was read up to {state.read.place:,}, and was removed or replaced while the "
                    "ingress was down. What was appended to it after that cannot be read. Run the flow again"
                )

    def _track_again(self, path: Path, state: FileState, key: int) -> TrackedFile:
        tracked = self._last_of[state.path] = self._track(path, state, key)
        return tracked

    # Which file a name stands for.

    def _recognise(self, path: Path) -> TrackedFile | None:
        try:
            stat = path.stat()
        except FileNotFoundError:
            if self._follow:
                return None  # It was renamed or removed since it was listed.
            raise
        tracked = self._files.get((stat.st_dev, stat.st_ino))
        seen = str(path), stat.st_size, stat.st_mtime_ns
        if tracked is None:
            self._add_missed(path)
            tracked = self._compressed_form(path) or self._add(path, stat)
        elif seen != tracked.seen and not self._is_same(tracked, path):
            self._last_of[str(path)] = self._move_to_copy(tracked) or tracked
            self._add_missed(path)
            tracked = self._add(path, stat)
        self._last_of[str(path)] = tracked
        tracked.state = replace(tracked.state, path=str(path))
        # A file that was changed just now may change again without another time.
        tracked.seen = seen if time.time() - stat.st_mtime > WRITE_GRACE_S else None
        return tracked

    def _add(self, path: Path, stat: os.stat_result) -> TrackedFile:
        state = FileState(str(path), stat.st_dev, stat.st_ino, _NOTHING, _NOTHING)
        tracked = self._files[stat.st_dev, stat.st_ino] = TrackedFile(state, is_final=not self.grows(path))
        return tracked

    def _add_missed(self, path: Path) -> None:
        """Add the files that had this name after the last one that is known, and lost it before they were seen."""
        last = self._last_of.get(str(path))
        if last is None or last.file is None or not self.grows(path):
            return
        written_ns = last.file.stat.st_mtime_ns
        missed = []
        for each in rotated_names(path):
            with contextlib.suppress(FileNotFoundError):
                stat = each.stat()
                is_new = (stat.st_dev, stat.st_ino) not in self._files and stat.st_mtime_ns >= written_ns
                if is_new and not self._is_copy(each):
                    missed.append((stat.st_mtime_ns, each, stat))
        for _, each, stat in sorted(missed, key=lambda found: found[0]):
            self._add(each, stat)

    def _is_copy(self, path: Path) -> bool:
        """Return whether a file has the content of one that is tracked, as its compressed form has."""
        known = [each.state for each in self._files.values() if each.state.known.place]
        return any(self._has_content(path, state, [state.read]) for state in known)

    def _is_same(self, tracked: TrackedFile, path: Path) -> bool:
        """Return whether a file with the same inode has what was read; if so and it grows, it is held open."""
        if not self.grows(path) or tracked.is_done:
            with path.open("rb", buffering=0) as raw:
                return has_prefix(raw, tracked.state.known)
        if tracked.file is None:
            tracked.file = TextFile(path, tracked.state.read.place)
            return tracked.file.prefix == tracked.state.read
        return tracked.file.is_intact()

    def _move_to_copy(self, tracked: TrackedFile) -> TrackedFile | None:
        """Read a file that was truncated or overwritten on in its copy; return None if it is never read again."""
        del self._files[tracked.identity]
        if tracked.file is not None:
            tracked.file.close()
            tracked.file = None
        if tracked.is_done:
            return None
        state = tracked.state
        path = self._find(state, [state.read], other_than=tracked.identity)
        if path is None:
            raise FluxError(
                f"{changed(tracked.path, state.read.place)}. What was appended to it before that cannot be read, "
                "because no file beside it is its copy. Rotate it by renaming, or with logrotate's copytruncate, which "
                "keeps a copy"
            )
        return self._track(path, state, tracked.key)

    def _track(self, path: Path, state: FileState, key: int | None) -> TrackedFile:
        """Track a file that was read before and is at `path` now."""
        stat = path.stat()
        other = self._files.get((stat.st_dev, stat.st_ino))
        if other is not None and other.state.read.place:
            raise FluxError(
                f"Files: {path} is a copy of {state.path}, and both were read: rows are there twice. Give a path or a "
                "pattern that leaves out copies"
            )
        is_original = (stat.st_dev, stat.st_ino) == state.identity
        known = state.known if is_original else self._known(path, state.read.place)
        state = replace(state, path=str(path), device=stat.st_dev, inode=stat.st_ino, known=known)
        tracked = TrackedFile(state, key, is_final=not (is_original and self.grows(path)))
        tracked.file = TextFile(path, state.read.place) if self._format.grows else None
        self._files[tracked.identity] = tracked
        return tracked

    def _compressed_form(self, path: Path) -> TrackedFile | None:
        """Return the tracked file of which `path` is the compressed form, if it has replaced that."""
        plain = plain_name(path)
        if plain == path or plain.exists():
            return None
        for tracked in self._files.values():
            if (
                tracked.path == plain
                and tracked.key is not None
                and self._has_content(path, tracked.state, [tracked.state.read])
            ):
                old = tracked.identity
                if tracked.file is not None:
                    tracked.file.close()
                moved = self._track(path, tracked.state, tracked.key)
                if moved.identity != old:
                    del self._files[old]
                return moved
        return None

    # What was not read.

    def _is_held(self, tracked: TrackedFile) -> bool:
        """Return whether a file without its name can be read on; if it cannot, say so and forget it."""
        if tracked.file is None and self._format.grows:
            found = self._find(tracked.state, [tracked.state.read])
            if found is not None:
                self._files.pop(tracked.identity)
                tracked.file = self._track(found, tracked.state, tracked.key).file
                self._files[tracked.identity] = tracked
        if tracked.file is None:
            if tracked.key is not None and self._format.grows:
                log.warning(REMOVED, tracked.path, tracked.state.read.place)
            self.note_done(tracked)
            return False
        if not tracked.is_final and not tracked.file.is_intact():
            self._move_to_copy(tracked)
            return False
        stat = tracked.file.stat
        if stat.st_nlink == 0 and time.time() - stat.st_mtime > REMOVED_GRACE_S:
            tracked.is_final = True
        return True

    def _has_more(self, tracked: TrackedFile, is_named: bool = True) -> bool:
        if tracked.is_done:
            return False
        if not self.grows(tracked.path):
            return self._is_whole(tracked)
        if tracked.file is None:
            tracked.file = TextFile(tracked.path, tracked.state.read.place)
        size = tracked.file.stat.st_size
        if tracked.state.known.place < END_BYTES:
            tracked.state = replace(tracked.state, known=tracked.file.first(size))
        if size == tracked.state.read.place and tracked.is_final:
            self.note_done(tracked)
        elif size == tracked.state.read.place and not is_named:
            self._note(tracked, ROTATED)
        return size != tracked.state.read.place

    def _is_whole(self, tracked: TrackedFile) -> bool:
        """Return whether a file that does not grow is whole; raise if it is not being written."""
        path = tracked.path
        try:
            if tracked.file is not None and not path.exists():
                return True  # It is held open.
            if not self._follow or time.time() - path.stat().st_mtime < WRITE_GRACE_S:
                self._format.check_whole(path)
        except DAMAGED:
            if self._follow and path.exists() and time.time() - path.stat().st_mtime < WRITE_GRACE_S:
                return False
            raise
        tracked.state = replace(tracked.state, known=self._known(path, 0))
        if self._format.grows and tracked.file is None:
            tracked.file = TextFile(path, tracked.state.read.place)
        return True

    def _known(self, path: Path, place: int) -> Prefix:
        """Return what is known of a file as it is on the disk: of one that does not grow, all."""
        with path.open("rb", buffering=0) as raw:
            return prefix_of(raw, place if self.grows(path) else path.stat().st_size)

    def _hold_few(self, listed: list[TrackedFile]) -> None:
        """Close the files that were read least recently, if too many are open: they are found again by their names."""
        held = [tracked for tracked in listed if tracked.file is not None and not tracked.is_final]
        held.sort(key=lambda tracked: tracked.last_read)
        for tracked in held[: max(0, len(held) - HELD_MAX)]:
            assert tracked.file is not None
            if not self._has_more(tracked):
                tracked.file.close()
                tracked.file = None

    # Files by content.

    def _find(self, state: FileState, wanted: list[Prefix], other_than: tuple[int, int] | None = None) -> Path | None:
        """Return where a file is now: the same inode with the same content, or a copy of it, also a compressed one."""
        copies = []
        for path in _siblings(Path(state.path)):
            with contextlib.suppress(*DAMAGED):
                stat = path.stat()
                identity = stat.st_dev, stat.st_ino
                if identity != state.identity:
                    copies.append(path)
                elif identity != other_than and self._has_content(path, state, wanted):
                    return path
        return next((path for path in copies if self._has_content(path, state, wanted)), None)

    def _has_content(self, path: Path, state: FileState, wanted: list[Prefix]) -> bool:
        """Return whether the file at `path` has the content of another, as far as that is known."""
        with contextlib.suppress(*DAMAGED):
            if self.grows(Path(state.path)):
                with open_plain(path) as file:
                    return all(has_prefix(file, prefix) for prefix in [state.known, *wanted])
            with path.open("rb", buffering=0) as raw:
                return has_prefix(raw, state.known)
        return False


def rotated_names(path: Path) -> list[Path]:
    """Return the files beside `path` to which it may have been rotated: with a number or a date in their names."""
    forms = (f"{re.escape(path.name)}{_ROTATED}", f"{re.escape(path.stem)}{_ROTATED}{re.escape(path.suffix)}")
    rotated = re.compile("|".join(rf"{form}(\.\w+)?" for form in forms))
    return [each for each in _siblings(path) if each != path and rotated.fullmatch(each.name)]


def _siblings(path: Path) -> Iterator[Path]:
    """Yield a file and those beside it."""
    if path.is_file():
        yield path
    with contextlib.suppress(OSError):
        yield from sorted(each for each in path.parent.iterdir() if each != path and each.is_file())
