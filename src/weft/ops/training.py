"""Optimiser steps (ai.onnx.preview.training)."""
