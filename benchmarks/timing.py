"""What the benchmarks share: CPU time, and the machine's own peak to compare with."""

import time
from collections.abc import Callable

import torch

from faithmeter.models.fast.choice import processor
from faithmeter.models.fast.fused_linear import available


def cpu_seconds(work: Callable[[], object]) -> float:
    """Return the CPU time of one call."""
    started = time.process_time()
    work()
    return time.process_time() - started


def matmul_peaks(size: int = 1024) -> dict[str, float]:
    """Return the machine's single-core peak in floating point operations a second, by each library torch has."""
    a = torch.rand(size, size)
    products: dict[str, Callable[[], object]] = {"torch.matmul": lambda: a @ a}
    if available():
        packed = torch.ops.mkldnn._reorder_linear_weight(a)
        products["oneDNN"] = lambda: torch.ops.mkldnn._linear_pointwise(a, packed, None, "none", [], "none")
    with torch.inference_mode():
        for product in products.values():
            product()
        return {name: max(2 * size**3 / cpu_seconds(each) for _ in range(5)) for name, each in products.items()}


def processor_name() -> str:
    """Return the processor, as `lscpu` names it, with the numbers that tell processors of one name apart."""
    known = processor()
    numbers = ", ".join(f"{name} {known[name]}" for name in ("cpu family", "model", "stepping") if name in known)
    return f"{known.get('model name', 'unknown')} ({numbers})" if numbers else known.get("model name", "unknown")
