"""Images for the scripts."""

from __future__ import annotations

import io

import numpy as np
from PIL import Image, ImageDraw, ImageFont


def draw_text(lines: list[str], size: int = 32) -> Image.Image:
    """Draw lines of text in black on white."""
    font = ImageFont.load_default(size)
    longest = max(int(font.getlength(line)) for line in lines)
    image = Image.new("RGB", (40 + longest, 20 + 2 * size * len(lines)), "white")
    draw = ImageDraw.Draw(image)
    for number, line in enumerate(lines):
        draw.text((20, 10 + 2 * size * number), line, fill="black", font=font)
    return image


def draw_scene(width: int = 480, height: int = 360, seed: int = 0) -> Image.Image:
    """Draw a person in front of a noisy gradient from sky to grass."""
    generator = np.random.default_rng(seed)
    down = np.linspace(0, 1, height)[:, None, None]
    pixels = (1 - down) * np.array([120.0, 170, 230]) + down * np.array([90.0, 150, 60]) + np.zeros((height, width, 1))
    pixels += generator.normal(0, 6, pixels.shape)
    image = Image.fromarray(pixels.clip(0, 255).astype(np.uint8))
    draw = ImageDraw.Draw(image)
    middle = width // 2
    draw.ellipse((middle - 45, 40, middle + 45, 160), fill=(224, 172, 140))  # a head
    draw.ellipse((middle - 25, 85, middle - 10, 95), fill=(60, 40, 30))
    draw.ellipse((middle + 10, 85, middle + 25, 95), fill=(60, 40, 30))
    draw.line((middle, 95, middle - 6, 118, middle + 4, 118), fill=(180, 120, 95), width=3)
    draw.arc((middle - 20, 118, middle + 20, 142), 20, 160, fill=(150, 50, 50), width=5)
    draw.polygon([(middle - 90, 340), (middle - 60, 180), (middle + 60, 180), (middle + 90, 340)], fill=(216, 160, 128))
    return image


def encode_png(image: Image.Image) -> bytes:
    stream = io.BytesIO()
    image.save(stream, "PNG")
    return stream.getvalue()
