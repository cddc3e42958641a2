"""The settings of a training run: fields, checks, files, policy maps, algorithms as settings.

`config.TrainConfig` is the way in. Needs no torch, so that help is fast; published runs are in
`configs`.
"""
