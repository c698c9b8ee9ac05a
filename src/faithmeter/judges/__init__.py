"""Judges: the other ways in which the literature tells good explanations from bad ones (Oxford thesis, 2022, Ch. 2).

A judge says one number or several of every explanation: named columns, one value a row, nan where a row cannot be
judged. What they show and what they cannot is said where they are reported.
"""

from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[np.float64]]
Columns = dict[str, Array]
