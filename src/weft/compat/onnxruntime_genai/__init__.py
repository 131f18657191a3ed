"""A drop-in replacement for onnxruntime-genai: the part of its Python interface that programs use, on top of weft.

`weft.compat.install("onnxruntime_genai")` makes `import onnxruntime_genai` return this package, and so does
`python -m weft.compat program.py`. Unsupported calls raise a RuntimeError with their name.
"""

from __future__ import annotations

from weft.compat.installation import GENAI_API_LEVEL
from weft.compat.onnxruntime_genai.config import Config as Config
from weft.compat.onnxruntime_genai.functions import disable_telemetry_events as disable_telemetry_events
from weft.compat.onnxruntime_genai.functions import enable_telemetry_events as enable_telemetry_events
from weft.compat.onnxruntime_genai.functions import get_current_gpu_device_id as get_current_gpu_device_id
from weft.compat.onnxruntime_genai.functions import is_cuda_available as is_cuda_available
from weft.compat.onnxruntime_genai.functions import is_dml_available as is_dml_available
from weft.compat.onnxruntime_genai.functions import is_openvino_available as is_openvino_available
from weft.compat.onnxruntime_genai.functions import is_qnn_available as is_qnn_available
from weft.compat.onnxruntime_genai.functions import is_webgpu_available as is_webgpu_available
from weft.compat.onnxruntime_genai.functions import set_current_gpu_device_id as set_current_gpu_device_id
from weft.compat.onnxruntime_genai.functions import set_log_callback as set_log_callback
from weft.compat.onnxruntime_genai.functions import set_log_options as set_log_options
from weft.compat.onnxruntime_genai.generator import Generator as Generator
from weft.compat.onnxruntime_genai.model import Model as Model
from weft.compat.onnxruntime_genai.params import GeneratorParams as GeneratorParams
from weft.compat.onnxruntime_genai.tensors import NamedTensors as NamedTensors
from weft.compat.onnxruntime_genai.tensors import Tensor as Tensor
from weft.compat.onnxruntime_genai.tokenizer import Tokenizer as Tokenizer
from weft.compat.onnxruntime_genai.tokenizer import TokenizerStream as TokenizerStream
from weft.compat.onnxruntime_genai.unsupported import Adapters as Adapters
from weft.compat.onnxruntime_genai.unsupported import Audios as Audios
from weft.compat.onnxruntime_genai.unsupported import Engine as Engine
from weft.compat.onnxruntime_genai.unsupported import Images as Images
from weft.compat.onnxruntime_genai.unsupported import MtpGenerator as MtpGenerator
from weft.compat.onnxruntime_genai.unsupported import MultiModalProcessor as MultiModalProcessor
from weft.compat.onnxruntime_genai.unsupported import Request as Request
from weft.compat.onnxruntime_genai.unsupported import RequestOptions as RequestOptions
from weft.compat.onnxruntime_genai.unsupported import StreamingProcessor as StreamingProcessor
from weft.compat.onnxruntime_genai.unsupported import TurnOptions as TurnOptions
from weft.compat.onnxruntime_genai.unsupported import (
    register_execution_provider_library as register_execution_provider_library,
)
from weft.compat.onnxruntime_genai.unsupported import (
    unregister_execution_provider_library as unregister_execution_provider_library,
)

__version__ = GENAI_API_LEVEL
__id__ = "onnxruntime-genai"
