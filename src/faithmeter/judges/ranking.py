"""The ranking of tokens by importance, with a rule for ties."""

import torch
from torch import Tensor


def ranks(importance: Tensor, maskable: Tensor) -> Tensor:
    """Return each token's rank among its row's maskable ones, the most important 0; ties go to the lowest position.

    It is the order in which a masking curve masks. Tokens that are not maskable come after all that are.
    """
    # two stable sorts: by importance, then the maskable tokens before the others
    by_importance = importance.argsort(dim=1, descending=True, stable=True)
    may = maskable.gather(1, by_importance)
    order = by_importance.gather(1, may.int().argsort(dim=1, descending=True, stable=True))
    places = torch.arange(order.shape[1], device=order.device).expand_as(order).contiguous()
    return torch.empty_like(order).scatter_(1, order, places)
