import os
import sys
from pathlib import Path

# The stub ignores PYTHONPATH.
sys.path.insert(0, os.environ.get("OMNI_HOME") or str(Path(__file__).resolve().parents[3]))

from python_backends.serving.stage_model import StageModel


class TritonPythonModel(StageModel):
    stage = "talker"
