"""Matrices over an environment of one's own."""

from __future__ import annotations

from flowzoo.baselines.matrix.file import read_matrix


def test_cells_play_an_environment_in_place_of_a_workflow():
    table = {
        "seeds": [0],
        "settings": {"env": "games.py:make", "model": "pocket:math", "options": ["illegal=end"]},
        "cells": [{"algorithm": ["grpo", "dr_mas"]}],
    }
    matrix = read_matrix(table, "games", "games.toml")
    assert [cell.name for cell in matrix.cells] == [
        "aec-games.py-make-grpo-shared-pocket-math",
        "aec-games.py-make-dr_mas-shared-pocket-math",
    ]
    assert {cell.task for cell in matrix.cells} == {"games.py:make"}
