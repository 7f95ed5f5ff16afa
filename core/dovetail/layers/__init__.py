"""The building blocks of model plugins: layers that know about ranks, and weight loading.

Independent of model families, the scheduler and checkpoint file formats.
"""
