"""Raw media on their way from a stub to its engine process."""

from __future__ import annotations

import numpy as np
import zmq

from python_backends.config.media_inputs import split_media
from python_backends.engine_host.control import ControlServer, answer
from python_backends.serving.replicas import Replicas


def test_they_reach_the_engine_process_beside_streams_without(tmp_path):
    context, opened = zmq.Context(), []

    def open_one(payload):
        opened.append(payload)
        media = split_media(payload.get("media", {}))
        return {"images": [list(image.shape) for image in media.image]}

    handlers = {"open_all": lambda payload: {"answers": [answer(open_one, one) for one in payload["streams"]]}}
    base = f"ipc://{tmp_path}/thinker-0-1"
    server = ControlServer(context, f"{base}.ctl", f"{base}.calls", handlers, dict)
    server.hello({})
    replicas = Replicas(tmp_path, "thinker")
    shapes = np.array([[500, 1000, 3], [500, 333, 3]])
    pixels = np.random.default_rng(0).integers(0, 256, shapes.prod(axis=1).sum(), dtype=np.uint8)
    media, wrong = ({"IMAGE": given, "IMAGE_SHAPES": shapes} for given in (pixels, pixels[:100]))
    try:
        results = replicas.open([{"stream_id": "a"}, {"stream_id": "b", "media": media}, {"media": wrong}])
    finally:
        replicas.close()
        server.close()
        context.destroy(linger=0)
    assert results[:2] == [{"images": []}, {"images": [[500, 1000, 3], [500, 333, 3]]}]
    assert results[2].code == "invalid_request" and "IMAGE_SHAPES[0]" in str(results[2])
    assert "media" not in opened[0]
    np.testing.assert_array_equal(opened[1]["media"]["IMAGE"], media["IMAGE"])
