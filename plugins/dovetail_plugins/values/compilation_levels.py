"""How far steps are made fast: the levels of --compilation-config (-O).

`value` is whether steps are recorded and run again as one where the device can.
"""

from __future__ import annotations

from dovetail.interfaces.plugin import Value

LEVEL_0 = Value(summary="every operator by itself", value=False)
LEVEL_1 = Value(summary="the same: fused operators are always on", value=False)
LEVEL_2 = Value(summary="steps are recorded and run again as one", value=True)
LEVEL_3 = Value(summary="all that the device has; today the same as 2", value=True)
