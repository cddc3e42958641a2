"""The faces to PettingZoo and Gymnasium: AEC, parallel and single-role environments, spaces.

`registry` says which workflows exist and makes them by name.
"""
