"""The bundled workflows, one file each; a module's docstring is its page.

They use scripts, tasks and texts, never the episode that runs them.
"""
