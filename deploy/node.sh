#!/bin/bash
# One run on one node with 8 GPUs: a rank on each. Not run yet; see docs/scale.md.
#
#     deploy/node.sh voting --model /models/Qwen3-1.7B --out runs/voting
#
# The words are those of `flowzoo train`. The same command goes on from the last checkpoint.
set -euo pipefail

exec flowzoo train "$@" --backend torchrun --ranks 8 --engine vllm --placement split
