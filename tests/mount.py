"""Folder of files as Kubernetes mounts a Secret or a ConfigMap: a change replaces all of them at once."""

import shutil
from collections.abc import Mapping
from itertools import count
from pathlib import Path


class Mount:
    """A mounted volume. Each file is a link through `..data`, which `replace` lets point to another folder, as the kubelet
    does; the folder before is removed."""

    def __init__(self, folder: Path, files: Mapping[str, str]) -> None:
        self.folder = folder
        self._numbers = count(1)
        folder.mkdir(parents=True)
        self.replace(files)
        for name in files:
            (folder / name).symlink_to(Path("..data") / name)

    def __truediv__(self, name: str) -> Path:
        return self.folder / name

    def replace(self, files: Mapping[str, str]) -> None:
        """Replace all files, of the same names, at once."""
        data = self.folder / "..data"
        before = data.resolve() if data.is_symlink() else None
        made = self.folder / f"..2026_{next(self._numbers)}"
        made.mkdir()
        for name, text in files.items():
            (made / name).write_text(text)
        (self.folder / "..data_tmp").symlink_to(made.name)
        (self.folder / "..data_tmp").rename(data)
        if before is not None:
            shutil.rmtree(before)
