"""`python -m tools.pocket`: make a pocket model."""

from tools.pocket.make import main

if __name__ == "__main__":
    main()
