"""The report: one page that says how a run, or a matrix of runs, went and which role broke it.

`reading` finds runs and reads their files; `accuracy`, `changes`, `gradients`, `findings` and
`cells` turn them into facts, which are plain values; `transcripts` packs the episodes; `page` puts
everything into one self-contained HTML file, and `plots` draws the same curves as image files.
"""

from __future__ import annotations
