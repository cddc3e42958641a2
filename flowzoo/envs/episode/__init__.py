"""An episode as the log of a script: playing, effects, replay, records, credit.

May use scripts, tasks and records; knows nothing of PettingZoo.
"""
