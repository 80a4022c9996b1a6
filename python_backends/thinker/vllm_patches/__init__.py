"""What is patched or worked around in vLLM and transformers: a file each, with the version and when it can go.

PyPI's torchvision beside the CPU build of torch is seen to by set-up: `scripts/site/omni_torchvision_ops.py`.
"""
