#!/usr/bin/env bash
# Warm starts of SmolLM2-135M-Instruct from scripted experts, one for each workflow, into build/warm.
set -euo pipefail
model=${1:-models/SmolLM2-135M-Instruct.Q4_1.gguf}
for workflow in single voting eval_opt; do
  episodes=320
  [[ $workflow != single ]] || episodes=800
  flowzoo sft "$workflow" --options level=1 --model "$model" --prompts short --examples 0 \
    --lora-rank 16 --lr 1e-3 --n $episodes --epochs 1 --batch 16 --eval-problems 100 --max-tokens 40 \
    --threads 1 --out "build/warm/$workflow"
done
