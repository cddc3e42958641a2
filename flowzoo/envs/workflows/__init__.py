"""The bundled workflows, one file each; a module's docstring is its page in the documentation."""
