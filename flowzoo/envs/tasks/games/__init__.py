"""Board games: plan_path, sokoban and sudoku, with compiled solvers."""
