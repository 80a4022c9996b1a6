"""Images as RGB."""

from __future__ import annotations

import io
import warnings

import numpy as np
import pillow_heif
from PIL import Image, ImageOps, UnidentifiedImageError

from python_backends.config.errors import InvalidRequest
from python_backends.thinker.media.options import MediaOptions

pillow_heif.register_heif_opener(thumbnails=False, decode_threads=1)
# Named, because some of Pillow's other readers start programs.
_FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF", "AVIF", "HEIF")
_MIN_SIDE, _MAX_RATIO = 2, 200
_TIFF_BITS, _TIFF_PHOTOMETRIC, _TIFF_WHITE_IS_ZERO = 258, 262, 0


def decode_image(data: bytes, field: str, options: MediaOptions) -> Image.Image:
    """The first frame, turned upright, transparent parts on white. Raises InvalidRequest on `field`."""
    try:
        with warnings.catch_warnings():
            # Our own limit on pixels is checked before any is decoded.
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)
            image = Image.open(io.BytesIO(data), formats=_FORMATS)
            check_size(image.width, image.height, field, options)
            image.load()
            # A file may tell one size and hold another.
            check_size(image.width, image.height, field, options)
            return _on_white(ImageOps.exif_transpose(_eight_bits(image, field)))
    except InvalidRequest:
        raise
    except Image.DecompressionBombError:
        raise InvalidRequest(field, f"has more than {options.max_image_pixels} pixels") from None
    except UnidentifiedImageError:
        known = "PNG, JPEG, WebP, GIF, BMP, TIFF, AVIF and HEIC"
        raise InvalidRequest(field, f"is not an image of a known format, or is damaged: taken are {known}") from None
    except Exception:
        # Pillow raises what its readers raise: OSError, ValueError, SyntaxError, struct.error and others. Their words
        # may name objects of this process.
        raise InvalidRequest(field, "is not an image that can be read: it is damaged or cut") from None


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


def _eight_bits(image: Image.Image, field: str) -> Image.Image:
    """Grey of more than 8 bits brought to 8, which Pillow's own conversion cuts off at 255.

    Integers have their file's range, 16 bits unless it says less. Floating-point ones are 0 to 1; those that reach
    beyond are 0 to 255.
    """
    if not image.mode.startswith(("I", "F")):
        return image
    values = np.asarray(image).astype(np.float32)
    tags = getattr(image, "tag_v2", {})
    if image.mode == "F":
        white = 1 if values.max() <= 1 else 255
    else:
        white = 2 ** min(16, max(tags.get(_TIFF_BITS, (16,)))) - 1
    if not (values.min() >= 0 and values.max() <= white):
        raise InvalidRequest(
            field, "holds grey values below 0, above its white or not finite: save it with 8 or 16 bits"
        )
    grey = (values * (255 / white)).round()
    if tags.get(_TIFF_PHOTOMETRIC) == _TIFF_WHITE_IS_ZERO:
        grey = 255 - grey
    if (clear := image.info.get("transparency")) is not None:
        grey = np.where(values == clear, 255, grey)
    upright = Image.fromarray(grey.astype(np.uint8))
    upright.info["exif"] = image.getexif().tobytes()
    return upright


def _on_white(image: Image.Image) -> Image.Image:
    if image.mode not in ("RGBA", "LA", "PA", "La", "RGBa") and "transparency" not in image.info:
        return image.convert("RGB")
    layer = image.convert("RGBA")
    ground = Image.new("RGBA", layer.size, (255, 255, 255, 255))
    return Image.alpha_composite(ground, layer).convert("RGB")
