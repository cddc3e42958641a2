"""Start the runner: `python -I -S -B flowzoo/sandbox/runner MODE [OPTIONS]`; see `MODES`."""

# This is the only frame above a program's, which can see its variables: only functions that end the
# program are here.
import start

code, scope, report, finish = start.main()  # returns only in the process of a program
del start
status = 0
try:
    exec(code, scope)
except BaseException as error:
    status = report(error)
del code, scope  # the last references to what the program left
finish(status)
