"""Settings of a training run: fields, checks, files, policy maps, algorithms as settings."""
