"""Plain dataclasses shared by stubs and engines. Imports neither torch nor Triton."""
