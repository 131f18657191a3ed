"""Test that the example programs agree with other engines, and print what their README.md shows.

The oracles: onnxruntime in place of weft (peer.py), its greedy tokens for generated text, the content of the images and
the recording, token ids of Hugging Face's tokenizers, and scikit-learn, which examples/sklearn_pipeline.py itself
compares with.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType

import answer_questions
import classify
import decoder_loop
import efficientnet
import files
import numpy as np
import pytest
import read_text
import search
import transcribe
from examples.peer import PeerModel
from PIL import Image

import weft

ROOT = Path(__file__).parent.parent.parent
EXAMPLES = ROOT / "examples"
README = (EXAMPLES / "README.md").read_text(encoding="utf-8")
PROGRAMS = (answer_questions, classify, decoder_loop, efficientnet, files, read_text, search, transcribe)
SPEED = re.compile(r"\d+ a second|\d+\.\d+ ms")

Find = Callable[[str], Path]


def run_program(program: ModuleType, capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.argv", [f"{program.__name__}.py", *map(str, arguments)])
        program.main()
    return capsys.readouterr().out


def readme_output(program: str) -> str:
    """Return the output of a program in README.md."""
    match = re.search(rf"^\$ python examples/{program}.py\n(.*?)^```", README, re.MULTILINE | re.DOTALL)
    assert match, f"README.md shows no output of {program}.py"
    return match[1]


@pytest.mark.models
def test_classify(
    example_file: Find, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "efficientnet.onnx"
    efficientnet.write(example_file("efficientnet-lite0.pth"), path)
    monkeypatch.setattr("classify.efficientnet_file", lambda: path)
    assert run_program(classify, capsys, "--device", "cpu") == readme_output("classify")
    image = Image.open(EXAMPLES / "data" / "cat.jpg")
    ours, theirs = (classify.classify(model, image) for model in (weft.load(path, device="cpu"), PeerModel(path)))
    np.testing.assert_allclose(ours, theirs, atol=1e-5)


@pytest.mark.models
def test_transcribe(example_file: Find, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_program(transcribe, capsys, "--device", "cpu") == readme_output("transcribe")
    audio = decoder_loop.read_audio(example_file("beckett.wav"))
    ours = transcribe.speech_probabilities(weft.load(example_file("silero_vad.onnx"), device="cpu"), audio)
    monkeypatch.setattr("weft.load", lambda source, **_: PeerModel(source))
    theirs = transcribe.speech_probabilities(weft.load(example_file("silero_vad.onnx"), device=[]), audio)
    np.testing.assert_allclose(ours, theirs, atol=1e-4)
    encoder = weft.load(example_file("moonshine_encoder.onnx"), device=[])
    decoder = weft.load(example_file("moonshine_decoder.onnx"))
    vocabulary = decoder_loop.Vocabulary(example_file("moonshine_tokenizer.json"))
    lines = [
        f"{begin:7.2f} – {end:6.2f} s "
        + "".join(
            transcribe.transcribe(encoder, decoder, vocabulary, audio[round(begin * 16_000) : round(end * 16_000)])
        )
        for begin, end in transcribe.find_segments(theirs)
    ]
    assert lines == readme_output("transcribe").splitlines()


@pytest.mark.models
def test_decoder_loop(example_file: Find, capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, where in (([], "kept there"), (["--copy"], "copied to the host and back")):
        text = run_program(decoder_loop, capsys, "--device", "cpu", *arguments).replace(where, "kept there")
        assert SPEED.sub("", text) == SPEED.sub("", readme_output("decoder_loop"))


@pytest.mark.models
def test_read_text(example_file: Find, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_program(read_text, capsys, "--device", "cpu") == readme_output("read_text")
    image = Image.open(EXAMPLES / "data" / "receipt.png").convert("RGB")
    models = (example_file("text_detection.onnx"), example_file("text_recognition.onnx"))
    ours = read_text.read_text(*(weft.load(path, device="cpu") for path in models), image)
    theirs = read_text.read_text(*map(PeerModel, models), image)
    assert [(line.box, line.text) for line in ours] == [(line.box, line.text) for line in theirs]
    np.testing.assert_allclose([line.certainty for line in ours], [line.certainty for line in theirs], atol=1e-3)


def test_answer_questions(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_program(answer_questions, capsys, "--device", "cpu") == readme_output("answer_questions")
    questions = answer_questions.SAMPLE.splitlines()
    with weft.Generator(device="cpu") as generator:
        answers = list(answer_questions.answer_questions(generator, questions, max_new_tokens=100, temperature=0))
        tokenizer, folder = generator.tokenizer, generator.folder
    peer = PeerModel(folder.decoder)
    for question, answer in zip(questions, answers, strict=True):
        prompt = tokenizer.encode(tokenizer.chat([{"role": "user", "content": question}]), special=False)
        tokens, logprobs = generate_greedily(peer, prompt, folder.end_tokens)
        assert list(answer.tokens) == tokens
        assert answer_questions.certainty(answer) == pytest.approx(np.exp(np.mean(logprobs)), abs=1e-5)


def generate_greedily(
    peer: PeerModel, prompt: Sequence[int], end_tokens: Sequence[int]
) -> tuple[list[int], list[float]]:
    """Return the likeliest tokens after a prompt up to an end token, without a cache, and their log probabilities."""
    shapes = {spec.name: spec.shape for spec in peer.inputs if spec.name.startswith("past_key_values.")}
    past = {name: np.zeros((1, shape[1], 0, shape[3]), np.float32) for name, shape in shapes.items()}
    tokens: list[int] = []
    logprobs: list[float] = []
    while not tokens or tokens[-1] not in end_tokens:
        ids = np.array([[*prompt, *tokens]])
        inputs = {"input_ids": ids, "attention_mask": np.ones_like(ids), **past}
        logits = peer.run(inputs, ["logits"])["logits"][0, -1].astype(np.float64)
        tokens.append(int(logits.argmax()))
        logprobs.append(float(logits.max() - np.logaddexp.reduce(logits)))
    return tokens, logprobs


@pytest.mark.parametrize(
    ("marks", "boxes"),
    [
        (["....", "...."], []),
        (["##.#", "##.#"], [(0, 0, 2, 2), (3, 0, 4, 2)]),
        (["#.#", "###"], [(0, 0, 3, 2)]),
        (["#..#", "#..#", "####", "#..."], [(0, 0, 4, 4)]),
        (["#.#.#", "#.###", "###.."], [(0, 0, 5, 3)]),
        ([".#.", "#.#"], [(0, 1, 1, 2), (1, 0, 2, 1), (2, 1, 3, 2)]),
    ],
)
def test_connected_components(marks: Sequence[str], boxes: Sequence[read_text.Box]) -> None:
    assert sorted(read_text.components(np.array([[sign == "#" for sign in row] for row in marks]))) == boxes


@pytest.mark.models
def test_search(example_file: Find, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_program(search, capsys, "--device", "cpu") == readme_output("search")
    pieces = search.WordPieces(example_file("bert_vocabulary.txt"))
    path = example_file("minilm.onnx")
    sentences = [*search.SAMPLE.splitlines(), "short", "ein ganz anderer Satz", "x " * 300]
    ours, theirs = (
        search.embed(model, pieces, sentences * 2) for model in (weft.load(path, device="cpu"), PeerModel(path))
    )
    np.testing.assert_allclose(ours, theirs, atol=1e-5)


@pytest.mark.models
@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        ("Naïve café, 3.14€ & co.", [15743, 7668, 1010, 1017, 1012, 2403, 30102, 1004, 2522, 1012]),
        ("don't stop: 北京 is a city", [2123, 1005, 1056, 2644, 1024, 1781, 1755, 2003, 1037, 2103]),
        ("emoji 😀 x\ty\nC++ $5", [7861, 29147, 2072, 100, 1060, 1061, 1039, 1009, 1009, 1002, 1019]),
        ("a" * 101, [100]),
    ],
    ids=["accents", "chinese", "signs", "long"],
)
def test_token_ids_match_the_tokenizers(text: str, numbers: list[int], example_file: Find) -> None:
    assert search.WordPieces(example_file("bert_vocabulary.txt")).encode(text) == [101, *numbers, 102]


@pytest.mark.packages
def test_sklearn_pipeline(tmp_path: Path) -> None:
    python = ROOT / ".packages" / "bin" / "python"
    if not python.exists():
        pytest.skip(".packages is missing; scripts/setup-packages creates it")
    command = [python, EXAMPLES / "sklearn_pipeline.py"]
    process = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert process.returncode == 0, process.stderr
    assert SPEED.sub("", process.stdout) == SPEED.sub("", readme_output("sklearn_pipeline"))


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_help(program: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        run_program(program, capsys, "--help")
    assert not end.value.code


@pytest.mark.parametrize(
    ("program", "arguments"),
    [
        (answer_questions, ["--in", "no.txt"]),
        (answer_questions, ["--in", EXAMPLES / "data" / "cat.jpg"]),
        (answer_questions, ["--model", "no_folder"]),
        (classify, ["no.jpg"]),
        (classify, [ROOT / "README.md"]),
        (read_text, ["no.png"]),
        (search, ["a question", "--in", "no.txt"]),
        (search, ["a question", "--in", EXAMPLES / "data" / "cat.jpg"]),
        (search, ["a question", "--model", ROOT / "README.md"]),
    ],
    ids=[
        "no questions",
        "not questions",
        "no folder",
        "missing image",
        "not an image",
        "missing scan",
        "missing text",
        "not text",
        "not a model",
    ],
)
def test_wrong_file_is_named(
    program: ModuleType, arguments: Sequence[object], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match=Path(str(arguments[-1])).name):
        run_program(program, capsys, *arguments)


@pytest.mark.parametrize("content", [b"RIFF", b"no audio"], ids=["truncated", "not audio"])
@pytest.mark.parametrize("program", [transcribe, decoder_loop], ids=lambda program: program.__name__)
def test_invalid_audio_is_named(
    program: ModuleType,
    content: bytes,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    vocabulary = tmp_path / "vocabulary.json"
    vocabulary.write_text('{"model": {"vocab": {}}}', encoding="utf-8")
    monkeypatch.setattr(program, "example_file", lambda _: vocabulary)
    audio = tmp_path / "audio.wav"
    audio.write_bytes(content)
    with pytest.raises(SystemExit, match=r"audio\.wav"):
        run_program(program, capsys, audio)


def test_readme_lists_every_program() -> None:
    listed = {name for name, target in re.findall(r"\[(\w+)\.py\]\((\w+\.py)\)", README) if target == f"{name}.py"}
    assert listed | {"files"} == {path.stem for path in EXAMPLES.glob("*.py")}
