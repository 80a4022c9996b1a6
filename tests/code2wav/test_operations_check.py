"""The benchmark's check of single operations finds the one that fails and the one that is wrong."""

from __future__ import annotations

import pytest
import torch

from python_backends.code2wav.ops import Ops
from python_backends.code2wav.parameters import build_parameters
from scripts.code2wav_bench.debug import NAMES, check_operations


class _Failing(Ops):
    def silu_gate(self, gate_up):
        raise RuntimeError("an illegal memory access")


class _Wrong(Ops):
    def rms_norm(self, x, weight, eps):
        return 1.01 * super().rms_norm(x, weight, eps)


def check(ops, config, tensors):
    parameters = build_parameters(tensors, config, "cpu", torch.float32)
    return check_operations(config, parameters, ops, "cpu", torch.float32)


def test_every_operation_is_compared(code2wav_config, code2wav_tensors):
    found = check(Ops(), code2wav_config, code2wav_tensors)
    assert {worst.operation for worst in found} == set(NAMES)
    assert all(worst.error == 0 for worst in found)


def test_the_failing_call_is_named(code2wav_config, code2wav_tensors):
    with pytest.raises(RuntimeError, match=r"failed in silu_gate\(float32\[2, 1, 96\]\)"):
        check(_Failing(), code2wav_config, code2wav_tensors)


def test_the_wrong_operation_stands_out(code2wav_config, code2wav_tensors):
    errors = {worst.operation: worst.error for worst in check(_Wrong(), code2wav_config, code2wav_tensors)}
    assert errors.pop("rms_norm") == pytest.approx(0.01, rel=1e-3)
    assert set(errors.values()) == {0.0}
