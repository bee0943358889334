"""The module ``dlt`` of an installed silverflow, for definitions that another client loads.

A package of this name stands before this module wherever it is installed.
"""

from silverflow.modules.dlt import *  # noqa: F401, F403
from silverflow.modules.dlt import __all__  # noqa: F401
