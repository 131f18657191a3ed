"""The version and name of the package, which onnxruntime's build writes to this module."""

from __future__ import annotations

from weft.compat.onnxruntime.naming import API_LEVEL

__version__ = API_LEVEL
package_name = "onnxruntime"
