"""What onnxruntime's build writes down."""

from __future__ import annotations

from weft.compat.onnxruntime.naming import API_LEVEL

__version__ = API_LEVEL
package_name = "onnxruntime"
