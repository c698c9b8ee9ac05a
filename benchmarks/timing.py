"""What the benchmarks share: CPU time, and the machine's own peak to compare with."""

import time
from collections.abc import Callable

import torch


def cpu_seconds(work: Callable[[], object]) -> float:
    """Return the CPU time of one call."""
    started = time.process_time()
    work()
    return time.process_time() - started


def matmul_peak() -> float:
    """Return the machine's own single-core peak in floating point operations a second: square float32 products."""
    a = torch.rand(1024, 1024)
    a @ a
    return max(2 * 1024**3 / cpu_seconds(lambda: a @ a) for _ in range(5))
