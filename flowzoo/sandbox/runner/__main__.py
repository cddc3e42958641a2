"""Start the runner: `python -I -S -B flowzoo/sandbox/runner MODE [OPTIONS]`; see `MODES`."""

# This frame is the only one above a program's, which can see its variables: nothing of the runner
# is here but the functions that end the program.
import start

code, scope, report, finish = start.main()  # comes back in the process of a program only
del start
status = 0
try:
    exec(code, scope)
except BaseException as error:
    status = report(error)
finish(status)
