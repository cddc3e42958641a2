"""How often the graders of mathematics and of programs are right: `benchmarks.grading.NAME`."""
