#!/usr/bin/env bash
# Warm starts of SmolLM2-135M-Instruct from scripted experts, one for each workflow, into build/warm:
#     benchmarks/real_warm.sh [WORKFLOW ...]
set -euo pipefail
model=models/SmolLM2-135M-Instruct.Q4_1.gguf
[[ $# -gt 0 ]] || set -- single voting eval_opt
for workflow in "$@"; do
  episodes=320
  [[ $workflow != single ]] || episodes=800
  flowzoo sft "$workflow" --options level=1 --model "$model" --prompts short --examples 0 \
    --lora-rank 16 --lr 1e-3 --n $episodes --epochs 1 --batch 16 --eval-problems 100 --max-tokens 40 \
    --threads 1 --out "build/warm/$workflow"
done
