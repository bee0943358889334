"""Pipelines in Python for silverflow.

``silverflow.loader`` is what the command starts to load definitions; ``silverflow/modules`` holds the module ``dlt``,
which is importable only there.
"""
