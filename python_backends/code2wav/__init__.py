"""Code2Wav: codec frames to 24 kHz audio, every frame decoded once."""
