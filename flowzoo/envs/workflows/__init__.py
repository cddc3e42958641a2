"""The bundled workflows, one per module; the module docstrings are their documentation pages."""
