"""The tiny checkpoint is a genuine one, small, and its random weights behave like a model's."""

import json
import subprocess
import sys

import pytest
import torch
from transformers import AutoProcessor, AutoTokenizer, Qwen3OmniMoeForConditionalGeneration

from tests.server import ROOT

END = 151645
PROMPTS = ("Hello", "Tell me a story about the sea.", "你好", "Sing a song.", "Who wrote Hamlet?", "How are you today?")
EMPTY_ANSWER = "No coffee, please."
ONE_TOKEN_ANSWER = "Hush."


@pytest.fixture(scope="module")
def tokenizer(tiny_checkpoint):
    return AutoTokenizer.from_pretrained(tiny_checkpoint)


@pytest.fixture(scope="module")
def model(tiny_checkpoint):
    return Qwen3OmniMoeForConditionalGeneration.from_pretrained(tiny_checkpoint, dtype=torch.float32).eval()


def encode(tokenizer, prompt):
    messages = [{"role": "user", "content": prompt}]
    return tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_tensors="pt")["input_ids"]


def answer(model, tokenizer, prompt):
    """Greedy answer ids, with the end token where it was reached within 200."""
    ids = encode(tokenizer, prompt)
    sequence = model.thinker.generate(ids, max_new_tokens=200, do_sample=False, eos_token_id=END)[0]
    return sequence[ids.shape[1] :].tolist()


def speak(model, tokenizer, prompt):
    """Greedy codes [frames, 16] and the waveform of a whole answer."""
    codes = []

    def keep(_module, arguments):
        codes.append(arguments[0][0].T)

    hook = model.code2wav.register_forward_pre_hook(keep)
    try:
        _, waveform = model.generate(
            encode(tokenizer, prompt),
            thinker_max_new_tokens=20,
            thinker_do_sample=False,
            talker_do_sample=False,
            talker_max_new_tokens=60,
        )
    finally:
        hook.remove()
    return codes[0], waveform.flatten()


def test_size_and_files(tiny_checkpoint):
    files = {path.name: path.stat().st_size for path in tiny_checkpoint.iterdir()}
    expected = "config.json tokenizer.json tokenizer_config.json chat_template.json generation_config.json"
    assert {*expected.split(), "preprocessor_config.json", "model.safetensors"} <= files.keys()
    assert sum(files.values()) < 200e6


def test_other_sizes_are_written_without_weights(tiny_checkpoint, tmp_path):
    sizes = ROOT / "scripts/tiny_checkpoint/published.config.json"
    make = [sys.executable, ROOT / "scripts/make_tiny_checkpoint.py", "--sizes", sizes]
    subprocess.run([*make, tmp_path / "made"], check=True, capture_output=True)
    subprocess.run([*make, tmp_path / "copied", "--files", tiny_checkpoint], check=True, capture_output=True)
    made, copied = ({path.name: path.read_bytes() for path in (tmp_path / at).iterdir()} for at in ("made", "copied"))
    assert made == copied and json.loads(made["config.json"]) == json.loads(sizes.read_text())
    assert not [name for name in made if "safetensors" in name]
    assert AutoTokenizer.from_pretrained(tmp_path / "made").encode("Hello") == [9707]


def test_published_ids(tokenizer, tiny_checkpoint):
    for text, token in {"user": 872, "system": 8948, "assistant": 77091, "Hello": 9707, "你好": 108386}.items():
        assert tokenizer.encode(text) == [token]
    config = json.loads((tiny_checkpoint / "config.json").read_text())
    named = {
        "<|im_start|>": config["im_start_token_id"],
        "<|im_end|>": config["im_end_token_id"],
        "<tts_pad>": config["tts_pad_token_id"],
        "<tts_text_bos>": config["tts_bos_token_id"],
        "<tts_text_eod>": config["tts_eos_token_id"],
        "<|audio_start|>": config["thinker_config"]["audio_start_token_id"],
        "<|audio_end|>": config["thinker_config"]["audio_end_token_id"],
        "<|audio_pad|>": config["thinker_config"]["audio_token_id"],
        "<|image_pad|>": config["thinker_config"]["image_token_id"],
        "<|video_pad|>": config["thinker_config"]["video_token_id"],
        "<|vision_start|>": config["thinker_config"]["vision_start_token_id"],
        "<|vision_end|>": config["thinker_config"]["vision_end_token_id"],
    }
    assert {name: tokenizer.convert_tokens_to_ids(name) for name in named} == named
    assert tokenizer.decode(tokenizer.encode("Ünïcode 龘 🪐\n")) == "Ünïcode 龘 🪐\n"


def test_processor_expands_media(tiny_checkpoint):
    processor = AutoProcessor.from_pretrained(tiny_checkpoint)
    content = [{"type": "audio", "audio": ""}, {"type": "image", "image": ""}, {"type": "text", "text": "Which?"}]
    prompt = processor.apply_chat_template([{"role": "user", "content": content}], add_generation_prompt=True)
    assert prompt.count("<|audio_pad|>") == prompt.count("<|image_pad|>") == 1
    image = torch.zeros(3, 64, 96, dtype=torch.uint8)
    inputs = processor(text=prompt, audio=[torch.zeros(16000).numpy()], images=[image], return_tensors="pt")
    assert (inputs["input_ids"] == 151675).sum() == 13  # one second of audio
    assert (inputs["input_ids"] == 151655).sum() == 2 * 3  # patches of 16, merged two by two


def test_answers_differ_and_end(model, tokenizer):
    answers = {prompt: answer(model, tokenizer, prompt) for prompt in PROMPTS}
    assert len({tuple(ids) for ids in answers.values()}) == len(PROMPTS)
    assert sum(ids[-1] == END for ids in answers.values()) >= len(PROMPTS) - 1
    assert all(len(set(ids)) > 0.7 * len(ids) for ids in answers.values())
    assert sum(len(ids) >= 30 for ids in answers.values()) >= 3
    texts = [tokenizer.decode(ids, skip_special_tokens=True) for ids in answers.values()]
    assert any("\u4e00" <= character <= "\u9fff" for character in "".join(texts))
    assert any(" " in text for text in texts)


def test_some_ids_are_parts_of_characters(model, tokenizer):
    ids = answer(model, tokenizer, "你好") + answer(model, tokenizer, "Why is the sky blue?")
    assert any("\ufffd" in tokenizer.decode([token]) for token in ids)


def test_empty_and_one_token_answers(model, tokenizer):
    assert answer(model, tokenizer, EMPTY_ANSWER) == [END]
    one = answer(model, tokenizer, ONE_TOKEN_ANSWER)
    assert len(one) == 2 and one[1] == END


def test_hidden_states_are_healthy(model, tokenizer):
    with torch.no_grad():
        states = model.thinker(encode(tokenizer, PROMPTS[1]), output_hidden_states=True).hidden_states
    assert len(states) == 5
    for state in states:
        rms = state[0].square().mean(-1).sqrt()
        assert rms.min() > 0.1 and rms.max() < 10
        # Rows of different positions are not copies of one another.
        assert torch.corrcoef(state[0]).fill_diagonal_(0).mean() < 0.5


def test_speech_differs_and_is_audible(model, tokenizer):
    (first, first_wave), (second, second_wave) = (speak(model, tokenizer, prompt) for prompt in PROMPTS[1:3])
    shortest = min(len(first), len(second))
    assert shortest >= 5
    assert ((first[:shortest] != second[:shortest]).float().mean(0) > 0.8).all()
    for codes, waveform in ((first, first_wave), (second, second_wave)):
        assert codes.shape[1] == 16
        assert all(len(set(group.tolist())) > 0.5 * len(codes) for group in codes.T)
        assert 0.05 < waveform.square().mean().sqrt() < 0.4
        assert (waveform.abs() >= 1).float().mean() < 0.001
