"""Images as RGB."""

from __future__ import annotations

import io
import warnings

import numpy as np
from PIL import Image, ImageOps

from python_backends.config.errors import InvalidRequest
from python_backends.thinker.media.options import MediaOptions

# Named, because some of Pillow's other readers start programs.
_FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF")
_MIN_SIDE, _MAX_RATIO = 2, 200


def decode_image(data: bytes, field: str, options: MediaOptions) -> Image.Image:
    """The first frame, turned upright, transparent parts on white. Raises InvalidRequest on `field`."""
    try:
        with warnings.catch_warnings():
            # Our own limit on pixels is checked before any is decoded.
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)
            image = Image.open(io.BytesIO(data), formats=_FORMATS)
            check_size(image.width, image.height, field, options)
            image.load()
            return _on_white(ImageOps.exif_transpose(image))
    except InvalidRequest:
        raise
    except Image.DecompressionBombError:
        raise InvalidRequest(field, f"has more than {options.max_image_pixels} pixels") from None
    except Exception as error:
        # Pillow raises what its readers raise: OSError, ValueError, SyntaxError, struct.error and others.
        raise InvalidRequest(field, f"is not an image of a known format: {error}") from None


def check_pixels(pixels: np.ndarray, field: str, options: MediaOptions) -> None:
    """Raises InvalidRequest on `field` for raw pixels that are not uint8 [height, width, 3], or too many."""
    if pixels.dtype != np.uint8 or pixels.ndim != 3 or pixels.shape[2] != 3:
        raise InvalidRequest(field, f"must be uint8 [height, width, 3], got {pixels.dtype} {list(pixels.shape)}")
    check_size(pixels.shape[1], pixels.shape[0], field, options)


def image_from_tensor(pixels: np.ndarray, field: str, options: MediaOptions) -> Image.Image:
    """Raw pixels uint8 [height, width, 3]."""
    check_pixels(pixels, field, options)
    return Image.fromarray(np.ascontiguousarray(pixels))


def check_size(width: int, height: int, field: str, options: MediaOptions) -> None:
    if width * height > options.max_image_pixels:
        raise InvalidRequest(field, f"has {width} x {height} pixels, more than {options.max_image_pixels}")
    if min(width, height) < _MIN_SIDE or max(width, height) > _MAX_RATIO * min(width, height):
        raise InvalidRequest(field, f"is too thin: {width} x {height} pixels")


def _on_white(image: Image.Image) -> Image.Image:
    if image.mode not in ("RGBA", "LA", "PA") and "transparency" not in image.info:
        return image.convert("RGB")
    layer = image.convert("RGBA")
    ground = Image.new("RGBA", layer.size, (255, 255, 255, 255))
    return Image.alpha_composite(ground, layer).convert("RGB")
