"""The Thinker: text ids from text, audio, images and video, on vLLM's public interface."""
