"""Files of a trace set on any fsspec file system, written so that none is ever half there."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

import fsspec

from foretrace.traces.errors import TraceFormatError


def file_system(url: str) -> tuple[Any, str]:
    """The file system of a path or fsspec URL, and the path there.

    Raises:
        TraceFormatError: it is empty, or nothing installed here can open such a URL.
    """
    if not url:
        raise TraceFormatError("an empty path; name a file, a folder, a glob or a URL")
    try:
        fs, root = fsspec.core.url_to_fs(url)
    except (ImportError, ValueError) as error:
        raise TraceFormatError(f"{url}: cannot open such a URL here ({error})") from None
    return fs, root


@dataclass(frozen=True, slots=True)
class Folder:
    """A folder on some file system.

    Attributes:
        fs: the file system.
        root: its path there.
    """

    fs: Any
    root: str

    @classmethod
    def at(cls, url: str | os.PathLike[str]) -> Folder:
        """The folder that a path or an fsspec URL names; it need not exist.

        Raises:
            TraceFormatError: nothing here can open such a URL.
        """
        fs, root = file_system(os.fspath(url))
        return cls(fs, root.rstrip("/"))

    @property
    def is_local(self) -> bool:
        """Whether renaming is one step here."""
        protocol = self.fs.protocol
        return "file" in ((protocol,) if isinstance(protocol, str) else protocol)

    def path(self, *names: str) -> str:
        """Path of a file below."""
        return "/".join((self.root, *names))

    def exists(self, *names: str) -> bool:
        """Whether a file or folder is there."""
        return bool(self.fs.exists(self.path(*names)))

    def names(self) -> list[str]:
        """Names of everything directly inside, sorted; empty if the folder is not there."""
        if not self.fs.isdir(self.root):
            return []
        self.fs.invalidate_cache(self.root)
        return sorted(p.rstrip("/").rsplit("/", 1)[-1] for p in self.fs.ls(self.root, detail=False))

    def read(self, *names: str) -> bytes:
        """Content of a small file."""
        return bytes(self.fs.cat_file(self.path(*names)))

    def write(self, data: bytes, *names: str) -> None:
        """Write a small file; readers see the old one or the new one, nothing between."""
        target = self.path(*names)
        if not self.is_local:
            self.fs.makedirs(target.rsplit("/", 1)[0], exist_ok=True)
            self.fs.pipe_file(target, data)
            return
        Path(target).parent.mkdir(parents=True, exist_ok=True)
        part = Path(f"{target}.{os.getpid()}.part")
        part.write_bytes(data)
        part.replace(target)

    def remove(self, *names: str) -> None:
        """Delete a folder or file with all it holds; nothing happens if it is not there."""
        path = self.path(*names)
        if self.fs.exists(path):
            self.fs.rm(path, recursive=True)

    @contextmanager
    def replacing(self, name: str) -> Iterator[Folder]:
        """Fill a folder that takes the place of ``name`` when the block ends well.

        Where renaming is not one step (object stores) the files go to their place at once;
        readers then wait for the manifest, which must be written last.
        """
        if not self.is_local:
            self.remove(name)
            yield Folder(self.fs, self.path(name))
            return
        target = Path(self.path(name))
        part = target.with_name(f".{name}.{_unique()}.part")
        part.mkdir(parents=True)
        try:
            yield Folder(self.fs, str(part))
            _swap(part, target)
        finally:
            shutil.rmtree(part, ignore_errors=True)


def _unique() -> str:
    """A name that no other process has, not even one of another host on the same files."""
    return f"{os.getpid()}-{uuid4().hex[:8]}"


def _swap(part: Path, target: Path) -> None:
    """Put ``part`` in the place of ``target``, which may exist, or come and go meanwhile."""
    while True:
        old = target.with_name(f".{target.name}.{_unique()}.old")
        with suppress(FileNotFoundError):
            target.replace(old)
        try:
            part.replace(target)
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise  # else another process was faster: its folder is replaced in turn
        else:
            return
        finally:
            shutil.rmtree(old, ignore_errors=True)
