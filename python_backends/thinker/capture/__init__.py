"""Hidden rows of media positions, taken out of vLLM's workers while they prefill.

vLLM loads the worker class from its `worker_cls` argument in every process that needs it, so nothing has to be
installed or registered: the class only has to be importable there.
"""
