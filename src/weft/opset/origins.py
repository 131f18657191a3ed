"""Operators that weft does not have: who defines them, and what to do about a model that uses one."""

from __future__ import annotations

import re

from weft.opset.microsoft.domain import BLOCKED_DOMAIN, DOMAIN
from weft.records import dataclass


@dataclass(frozen=True, slots=True)
class Origin:
    """Who defines an operator, and what a user of the model can do."""

    definer: str
    advice: str


@dataclass(frozen=True, slots=True)
class _Rule:
    """Operators by patterns of their domain and name, each matched as a whole."""

    domain: str
    op: str
    origin: Origin


_WRITE_IT = "define it in Python (docs/guides/writing-an-op.md), or export the model without it"
_BLOCKED = Origin(
    "onnxruntime's optimiser, which wrote this file for one machine",
    "let onnxruntime save the model at ORT_ENABLE_EXTENDED or below, or take the file from before it was optimised",
)
_TENSORRT = Origin(
    "a plugin of TensorRT",
    "export the model without the plugin: detections before suppression, or suppression as NonMaxSuppression",
)
_MODELOPT = Origin(
    "NVIDIA ModelOpt and TensorRT (numbers of 4 and 8 bits)",
    "export the quantised model with QuantizeLinear and DequantizeLinear of ai.onnx, or the model before quantisation",
)
_ATEN = Origin(
    "PyTorch, as an operator that the exporter did not convert",
    "export again with torch.onnx.export(..., dynamo=True) and a newer opset, without operator_export_type=ATEN",
)
_TORCH = Origin(
    "a function of PyTorch's exporter that this file does not hold",
    "export again with torch.onnx.export(..., dynamo=True), which writes functions into the file",
)
_EXTENSIONS = Origin(
    "onnxruntime-extensions, a library of custom operators (pre- and postprocessing of text, images and audio)",
    "do this step in Python, with the tokenizer or decoder that it stands for, and load the model without it",
)
_MMCV = Origin(
    "mmdeploy and mmcv, as custom operators of OpenMMLab",
    "export for onnxruntime with the rewriter of mmdeploy that uses standard operators, or end the model before it",
)
_OPENVINO = Origin(
    "OpenVINO, as an extension of ONNX", "export the model without Intel's operators, from the framework it comes from"
)
_QUALCOMM = Origin("Qualcomm's converters (QNN, SNPE, AIMET)", "take the ONNX file from before the conversion")
_AMD = Origin("AMD's quantisers (Quark, Vitis AI)", "take the model in float32, or quantise it with QuantizeLinear")
_BREVITAS = Origin(
    "Brevitas and QONNX (numbers of any width)", "export as QCDQ: brevitas.export.export_onnx_qcdq(model, ...)"
)
_TENSORFLOW = Origin(
    "TensorFlow, as an operator that tf2onnx could not convert",
    "convert again without --continue_on_error and with a newer --opset, and freeze or remove the op it then names",
)
_CONTEXT = Origin(
    "an execution provider of onnxruntime: the node holds code compiled for one device",
    "take the ONNX file that it was compiled from",
)
_TRAINING = Origin("onnxruntime-training", "export the model for inference: model.eval(), and without ORTModule")
_GENERATION = Origin(
    "onnxruntime (com.microsoft), as one node for a whole text generation loop",
    "export the model without it (the decoder alone), and write the loop around model.run",
)
_CONTRIBUTED = Origin(
    "onnxruntime (com.microsoft): its docs/ContribOperators.md has a section for each",
    "export without onnxruntime's fusions: the model from before its transformer optimiser, or optimization level 0",
)
_REMOVED = Origin(
    "ONNX before version 1.5, as an experimental operator that was removed", "export the model again with a newer opset"
)
_PADDLE = Origin("paddle2onnx, as a custom operator", "convert again with a newer paddle2onnx, without --custom_ops")
_CAFFE2 = Origin("Caffe2", "export the model again from PyTorch, without operator_export_type=ONNX_ATEN_FALLBACK")

_TRT_OPS = r".*_TRT(_\d+)?|.*Plugin(Dynamic|V\d+)?(_TRT)?|Custom\w+Dynamic|TRT\w+|GenerateDetection\w*|SplitGeLU"
_TRT_NUMBERS = r"TRT_\w*(FP8|FP4|INT4|MXFP8|INT8)\w*|.*(Quantize|Dequantize)\w*"
_MMCV_OPS = r"MMCV\w+|NMSRotated|RoIAlignRotated|TRTBatchedNMS|TRTBatchedRotatedNMS|DeformConv2d|grid_sampler"
_TRAINING_OPS = r"PythonOp(Grad)?|YieldOp|.*Grad|.*Gradient\w*|RecordEvent|WaitEvent|Adam\w*|Lamb\w*"
_TENSORFLOW_OPS = r"TFL_\w+|Flex\w+|TensorList\w+|StatefulPartitionedCall|PartitionedCall|\w+V[234]|Fused\w+"
_REMOVED_OPS = (
    r"ConstantFill|GivenTensorFill|ImageScaler|ParametricSoftplus|ScaledTanh|GRUUnit|DynamicSlice|Affine|Crop|Scale|FC"
)
_RULES = (
    _Rule(r"ai\.onnx\.contrib|com\.microsoft\.extensions|ai\.onnx\.extensions", ".*", _EXTENSIONS),
    _Rule(re.escape(BLOCKED_DOMAIN) + r"|com\.microsoft\.nhwc|com\.ms\.internal.*", ".*", _BLOCKED),
    _Rule(re.escape(DOMAIN), "EPContext", _CONTEXT),
    _Rule(r"com\.microsoft\.(dml|qnn|cann|vitisai)|.*\.epcontext", ".*", _CONTEXT),
    _Rule(re.escape(DOMAIN), "ATen", _ATEN),
    _Rule(re.escape(DOMAIN), _TRAINING_OPS, _TRAINING),
    _Rule(re.escape(DOMAIN), r"BeamSearch|WhisperBeamSearch|GreedySearch|Sampling", _GENERATION),
    _Rule(r"com\.microsoft(\.experimental)?", ".*", _CONTRIBUTED),
    _Rule(r"ai\.onnx\.training", ".*", _TRAINING),
    _Rule(r"trt|tensorrt|TRT", _TRT_NUMBERS, _MODELOPT),
    _Rule(r"mmdeploy|mmcv|mmdet.*", ".*", _MMCV),
    _Rule(r".*", _MMCV_OPS, _MMCV),
    _Rule(r"trt.*|tensorrt.*|TRT.*|nvinfer.*", ".*", _TENSORRT),
    _Rule(r".*", _TRT_OPS, _TENSORRT),
    _Rule(r"org\.pytorch.*|aten|prim|prims|torch|torchvision|torchaudio", ".*", _ATEN),
    _Rule(r".*", r"ATen|aten::.*|prim::.*|torchvision::.*", _ATEN),
    _Rule(r"pkg\..*|onnxscript.*|this|local", ".*", _TORCH),
    _Rule(r"org\.openvinotoolkit.*", ".*", _OPENVINO),
    _Rule(r"qti.*|com\.qti.*|com\.qualcomm.*|aimet.*", ".*", _QUALCOMM),
    _Rule(r"com\.(amd|xilinx|vai).*|vai.*|quark.*", ".*", _AMD),
    _Rule(r"onnx\.brevitas|qonnx.*|finn.*", ".*", _BREVITAS),
    _Rule(r"hailo.*", ".*", Origin("Hailo's compiler", "take the ONNX file from before hailo parsed it")),
    _Rule(r"ai\.graphcore.*", ".*", Origin("Graphcore's Poplar", "export the model without its operators")),
    _Rule(r"com\.rockchip.*|rknn.*", ".*", Origin("Rockchip's RKNN", "take the ONNX file from before its conversion")),
    _Rule(r"paddle.*|Paddle.*", ".*", _PADDLE),
    _Rule(r"caffe2|org\.caffe2.*", ".*", _CAFFE2),
    _Rule(r"tf.*|ai\.onnx\.converters\.tensorflow|com\.google.*", ".*", _TENSORFLOW),
    _Rule("", _REMOVED_OPS, _REMOVED),
    _Rule("", _TENSORFLOW_OPS, _TENSORFLOW),
)


def find_origin(domain: str, op: str) -> Origin | None:
    """Find who defines an operator that weft lacks, by its domain and name."""
    matching = (rule for rule in _RULES if re.fullmatch(rule.domain, domain) and re.fullmatch(rule.op, op))
    return next((rule.origin for rule in matching), None)


def describe_unknown_origin(domain: str) -> Origin:
    """Return the advice for an operator that no rule matches."""
    if not domain:
        return Origin("unknown: ai.onnx has no such operator", "look for a misspelt name; " + _WRITE_IT)
    return Origin(f"the exporter of the model, in its own domain ({domain})", _WRITE_IT)
