"""Results leave an engine in order, whatever one of the calls does."""

from __future__ import annotations

import threading

import pytest

from python_backends.engines_common.delivery import InlineDelivery, ThreadDelivery


def fail() -> None:
    raise ValueError("the sink is broken")


def test_a_thread_delivers_in_order_and_outlives_a_call_that_fails(caplog):
    delivery, made, let_go = ThreadDelivery("builder"), [], threading.Event()
    delivery.put(let_go.wait)
    for number in range(100):
        delivery.put(fail if number == 50 else lambda number=number: made.append(number))
    assert not made and not delivery.drain() and not delivery.pending()
    let_go.set()
    delivery.join()
    assert made == [number for number in range(100) if number != 50]
    assert "the sink is broken" in caplog.text and "builder" in caplog.text
    delivery.put(lambda: made.append("last"))
    delivery.close()
    assert made[-1] == "last"
    delivery.join()  # of a thread that has ended: nothing to wait for


def test_in_line_calls_wait_for_the_engine_thread_and_raise_there():
    delivery, made = InlineDelivery(), []
    delivery.put(lambda: made.append(1))
    delivery.put(fail)
    delivery.put(lambda: made.append(2))
    assert delivery.pending() and not made
    with pytest.raises(ValueError):
        delivery.drain()
    assert delivery.drain() and made == [1, 2] and not delivery.drain()
