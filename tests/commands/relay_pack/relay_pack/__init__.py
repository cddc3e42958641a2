"""A workflow and a task of somebody's own."""
