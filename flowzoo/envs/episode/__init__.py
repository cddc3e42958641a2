"""Episodes as logs of scripts: playing, effects, replay, records, credit."""
