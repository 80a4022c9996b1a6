import json

import pytest

from python_backends.engine_host.checkpoint import check_speaks

CONFIG = {"thinker_config": {}, "talker_config": {}, "code2wav_config": {}}


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        ({"thinker_config": {}}, "no talker_config and code2wav_config in its config.json"),
        (CONFIG | {"enable_audio_output": False}, "no audio output in its config.json"),
    ],
)
def test_a_checkpoint_that_cannot_speak_is_told_which_profile_fits(tmp_path, config, reason):
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ValueError, match=f"answers in text only .{reason}.*profile `thinking`"):
        check_speaks(str(tmp_path))


def test_one_that_can_speak_passes(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    check_speaks(str(tmp_path))
